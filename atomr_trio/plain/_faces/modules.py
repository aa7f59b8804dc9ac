"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from .._twins import Twin

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, ClassVar

    import numpy.typing as npt

    import atomr_trio

    from ..._compiling.images import ImageKind
    from ..._compiling.options import NvrtcOptions
    from ..._compiling.service import CompileStatistics
    from ...libraries.nvrtc.declared import DeclaredKernel
    from .arrays import DeviceArray
    from .devices import Device
    from .kernels import Kernel


class Module(Twin):
    """A loaded image: a mapping of the names of its kernels to `Kernel`s, made by `dev.module.load`.

    It stays valid when a generation is lost: the next one loads the image again. Its variables are set anew there; see
    `global_`. It is unloaded by `unload`, at the end of ``with module:``, or when it is collected. Its kernels and
    arrays keep it alive.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`dev.module.load(image)`"

    @property
    def awaited(self) -> atomr_trio.Module:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Module = self._awaited
        return value

    @property
    def name(self) -> str:
        """Its name in messages."""
        value: str = self._awaited.name
        return value

    @property
    def device(self) -> Device:
        """The device it belongs to."""
        value: Device = self._seen(self._awaited.device)
        return value

    @property
    def image_kind(self) -> ImageKind:
        """The kind of the loaded image. LTO-IR was made a cubin before, and so was PTX newer than the driver."""
        value: ImageKind = self._awaited.image_kind
        return value

    @property
    def target(self) -> str | None:
        """The target of the image: "compute_80" for PTX, "sm_90" for machine code; None if the image does not say."""
        value: str | None = self._awaited.target
        return value

    @property
    def globals(self) -> Mapping[str, int]:
        """Bytes of each variable in global or constant memory, by its name in the image.

        A fatbin does not contain their names: it has only those that were given to `load`.
        """
        value: Mapping[str, int] = self._awaited.globals
        return value

    @property
    def ptx(self) -> str | None:
        """The PTX text; None if there is only machine code."""
        value: str | None = self._awaited.ptx
        return value

    @property
    def cubin(self) -> bytes | None:
        """The machine code; None if the driver makes it from PTX, or chooses it from a fatbin."""
        value: bytes | None = self._awaited.cubin
        return value

    @property
    def log(self) -> str:
        """The messages of the compiler; empty for a loaded image."""
        value: str = self._awaited.log
        return value

    def __len__(self) -> int:
        """Return the number of kernels."""
        result: int = self._read(self._awaited.__len__)
        return result

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the kernels."""
        result: Iterator[str] = self._read(self._awaited.__iter__)
        return result

    def __contains__(self, name: object) -> bool:
        """Return whether the module has a kernel of this name."""
        result: bool = self._read(self._awaited.__contains__, (name,))
        return result

    def __getitem__(self, name: str) -> Kernel:
        """Return the kernel of this name, as `function` does. Raises `InvalidArgument` for an unknown name."""
        result: Kernel = self._enqueue(self._awaited.__getitem__, (name,))
        return result

    def function(self, name: str) -> Kernel:
        """Return the kernel called `name` in the image (``cuModuleGetFunction``): for C++ the mangled name.

        With PTX, arguments are checked by the types that it declares. Without PTX, only their sizes are known
        (``cuFuncGetParamInfo``): an 8-byte parameter takes device arrays, and every parameter takes ints and numpy
        scalars of its size; a Python float must be wrapped, ``np.float32(x)``.

        Raises `InvalidArgument` for an unknown kernel, and once the module is unloaded.
        """
        result: Kernel = self._enqueue(self._awaited.function, (name,))
        return result

    def global_(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """Return the variable `name`, ``__device__`` or ``__constant__``, as an array (``cuModuleGetGlobal``).

        `name` is the name in the image, for C++ the mangled one. The array has one axis, of all elements of the given
        `dtype` that the variable holds; `DeviceArray.reshape` gives it another shape. It is used like any other array,
        and keeps the module alive. But its memory is the module's: it cannot be freed or shared with another library,
        and has another address in each generation. Each generation begins with the variable's value in the image. If a
        copy, a fill or a kernel with the array as an argument has written it, using it after a fault raises
        `StaleArray`, and launching the module's kernels raises `StaleKernel`, until all of it is written again. Writes
        of a kernel to the variable by its own name are not noticed.

        Raises `InvalidArgument` for an unknown variable, a dtype whose size does not divide the variable's, and once
        the module is unloaded; `LibraryNotFound` for a dtype of ml_dtypes that is not installed.
        """
        result: DeviceArray = self._enqueue(self._awaited.global_, (name, dtype))
        return result

    def unload(self) -> None:
        """Unload the module once all work that was submitted before is done (``cuModuleUnload``).

        From then on every launch of its kernels raises `InvalidArgument`, prepared or in a graph too, and its arrays
        raise `StaleArray`. Unloading twice does nothing. It also succeeds if the generation is lost meanwhile.

        Raises `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self._wait(self._awaited.unload)

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(kind, error, traceback)


class Program(Module):
    """A compiled and loaded program, with its names in CUDA C++; made by `dev.nvrtc.compile_program`.

    ``program["my_kernel<float, 256>"]`` is a kernel and ``program["&symbol"]`` the bytes of a variable, if the name is
    among the name expressions of the options; ``extern "C"`` names need not be.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`dev.nvrtc.compile_program(source)`"

    @property
    def awaited(self) -> atomr_trio.Program:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Program = self._awaited
        return value

    @property
    def target(self) -> str:
        """The target that it was compiled for: "compute_80", "sm_90a"."""
        value: str = self._awaited.target
        return value

    @property
    def ptx(self) -> str | None:
        """The PTX that the compiler made; None if something else was requested."""
        value: str | None = self._awaited.ptx
        return value

    @property
    def cubin(self) -> bytes | None:
        """The machine code that the compiler made; None if only PTX was requested."""
        value: bytes | None = self._awaited.cubin
        return value

    @property
    def ltoir(self) -> bytes | None:
        """The LTO-IR for link-time optimisation; None if it was not requested."""
        value: bytes | None = self._awaited.ltoir
        return value

    @property
    def log(self) -> str:
        """The messages of the compiler, for example warnings."""
        value: str = self._awaited.log
        return value

    def __getitem__(self, name: str) -> Any:
        """Return a kernel by its name, or, with an ampersand before the name, a variable as an array of its bytes.

        Raises `InvalidArgument` for an unknown name.
        """
        return self._enqueue(self._awaited.__getitem__, (name,))

    def global_(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """Return the variable `name` as an array of `dtype` with one axis; `DeviceArray.reshape` changes its shape.

        The name is a name expression, ``"&ns::symbol"``, or that in the image. Otherwise it works as `Module.global_`.

        Raises as `Module.global_` does.
        """
        result: DeviceArray = self._enqueue(self._awaited.global_, (name, dtype))
        return result


class ModuleLoader(Twin):
    """Loads images that were compiled elsewhere, as `dev.module`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.ModuleLoader:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.ModuleLoader = self._awaited
        return value

    def load(
        self,
        image: bytes | bytearray | memoryview | str | os.PathLike[str],
        *,
        name: str | None = None,
        variables: Sequence[str] = (),
    ) -> Module:
        """Load an image: PTX, a cubin, a fatbin, or LTO-IR, which is linked for this device first.

        `image` is its bytes, the text of PTX, or the path of a file; a string with a line break is PTX, any other a
        path. `name` is the module's name in messages, by default the file's name. `variables` are further names of
        variables to look up; a fatbin contains none. The image is checked by its own headers here, and loaded by
        ``cuModuleLoadDataEx`` in the worker. nvJitLink makes a cubin of PTX that is newer than the driver.

        Raises `InvalidArgument` for bytes that are not an image, or not complete, and for a file that cannot be read;
        `CommandFailed` with the log of the driver's compiler for an image that it refuses, for example one for another
        architecture; `CompileError` and `LibraryNotFound` where it has to be linked and cannot be; `ContextLost` if the
        context is lost meanwhile.
        """
        result: Module = self._wait(self._awaited.load, (image,), {"name": name, "variables": variables})
        return result


class Nvrtc(Twin):
    """NVIDIA's run-time compiler, as `dev.nvrtc`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.Nvrtc:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Nvrtc = self._awaited
        return value

    def compile(self, source: str, name: str, options: NvrtcOptions | None = None) -> Kernel:
        """Compile CUDA C++ and load the kernel called `name`: an ``extern "C"`` name or one of the name expressions.

        `source` is the text of the program, and `options` say how to compile it, by default for the open device.
        ``nvrtcCompileProgram`` runs in a thread here, ``cuModuleLoadDataEx`` in the worker. The same source with the
        same options and headers is compiled once for all callers, and kept on disk for other processes. Cancelling ends
        the compile if no other caller waits for it and NVRTC is 12.8 or newer; otherwise it goes on, to be kept.

        Raises `CompileError` with the compiler's log, `InvalidArgument` for an unknown name, `LibraryNotFound` when
        there is no NVRTC, `ContextLost` if the context is lost while the image is loaded.
        """
        result: Kernel = self._wait(self._awaited.compile, (source, name, options))
        return result

    def compile_program(self, source: str, options: NvrtcOptions | None = None) -> Program:
        """Compile CUDA C++ and load all of it: kernels and variables by their names in the source.

        `source` and `options` are those of `compile`, and so are the functions, ``nvrtcCompileProgram`` and
        ``cuModuleLoadDataEx``. Each call loads a new module with its own variables, which can be unloaded. Modules of
        the kernels that `compile` returns are shared by all callers that compile the same.

        Raises as `compile` does.
        """
        result: Program = self._wait(self._awaited.compile_program, (source, options))
        return result

    def kernel(self, declared: DeclaredKernel) -> Kernel:
        """Return a kernel that was declared by `atomr_trio.kernel`; `DeclaredKernel.on` is a shorter way to say it.

        `declared` is compiled and loaded as by `compile` when the device is given it for the first time, into a module
        of its own (``nvrtcCompileProgram``, ``cuModuleLoadDataEx``). The device keeps it as long as the declaration
        exists.

        Raises as `compile` does, and `InvalidArgument` for anything but a declared kernel.
        """
        result: Kernel = self._wait(self._awaited.kernel, (declared,))
        return result

    def statistics(self) -> CompileStatistics:
        """Return what the compiler's threads and caches are doing and have done, for all devices of this run."""
        result: CompileStatistics = self._read(self._awaited.statistics)
        return result
