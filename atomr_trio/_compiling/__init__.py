"""From CUDA C++ to images: no device, no worker, no GPU.

In the order in which the files can be read:

- ``architectures``, ``flags``, ``nvrtc_library``, ``bundled_headers``: the features of NVRTC;
- ``options``, ``compiler``: one compile, in the calling thread;
- ``cache_folder``, ``build``, ``cache``: compiled programs, kept for the next process;
- ``identity``, ``headers``, ``caching``: the compiler and the headers of a compile, and the search in the cache;
- ``service``: many compiles at once, in threads, shared by tasks;
- ``images``, ``link_options``, ``ptx_versions``, ``linker``: the content of images, and linking them.
"""
