"""From CUDA C++ to images: no device, no worker, no GPU.

In the order in which the files can be read:

- ``architectures``, ``flags``, ``nvrtc_library``, ``bundled_headers``: what NVRTC knows and has;
- ``options``, ``compiler``: one compile, in the calling thread;
- ``cache_folder``, ``build``, ``cache``: what was compiled, kept for the next process;
- ``identity``, ``headers``, ``caching``: which compiler and headers decide, and what need not be compiled;
- ``service``: many compiles at once, in threads, shared by tasks;
- ``images``, ``link_options``, ``ptx_versions``, ``linker``: what images hold, and several made into one.
"""
