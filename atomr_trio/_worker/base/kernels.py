"""Kernels of our own, which do what a library's functions leave out.

An engine brings some along, as PTX that the driver compiles at its first use. A program may carry an image with others,
which was compiled on the user's side. It is loaded with the first plan that has it, and unloaded with the last.

A kernel's parameters are passed as words of 64 bits, of which a smaller one takes the first bytes. A kernel takes any
number of threads: each does every n-th part of the work.
"""

from __future__ import annotations

import threading
from ctypes import addressof, byref, c_char_p, c_size_t, c_uint64, c_void_p, cast
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from atomr_cuda.constants import driver as cuda

from ..._wire.programs import BadProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_THREADS: Final = 256
_MOST_BLOCKS: Final = 4096
"""About twice what the largest GPU runs at once."""
_WORD: Final = 8


class Kernel(NamedTuple):
    """One kernel."""

    text: str
    """The PTX of a module with this kernel, whose name is that in the table of kernels."""
    parameters: int
    """The number of its parameters."""


class Image:
    """The module of an image, and its kernels. Made by `Kernels.load`."""

    def __init__(self, content: bytes, module: Any) -> None:
        self.content: bytes = content
        self.module: Any = module
        self.functions: dict[str, Any] = {}
        """Those that were looked for."""
        self.users: int = 0


class Kernels:
    """The kernels of one engine, and those of its plans' images, in its context."""

    def __init__(self, driver: Any, known: Mapping[str, Kernel]) -> None:
        self.known: Mapping[str, Kernel] = known
        self._driver = driver
        self._lock = threading.Lock()  # lanes call from threads of their own
        self._modules: list[Any] = []
        self._functions: dict[str, Any] = {}
        self._images: dict[bytes, Image] = {}

    def prepare(self, name: str, threads: int | None) -> Callable[..., int]:
        """Return a function that launches the kernel with its words and a stream, and returns the driver's status.

        If `threads` is None, the number of threads is an argument before the words.
        """
        return self._prepared(self._function(name), self.known[name].parameters, threads)

    def prepare_of(self, image: Image, name: str, parameters: int, threads: int | None) -> Callable[..., int]:
        """Return such a function for a kernel of an image. Raises `BadProgram` if it has other parameters."""
        with self._lock:
            function = image.functions.get(name)
            if function is None:
                function = image.functions[name] = self._function_of(image.module, name)
        self._check_parameters(function, name, parameters)
        return self._prepared(function, parameters, threads)

    def load(self, content: bytes) -> Image:
        """Return an image, which is loaded if no plan has it yet. `release` gives it back."""
        with self._lock:
            image = self._images.get(content)
            if image is None:
                image = self._images[content] = Image(content, self._loaded(content + b"\0"))
            image.users += 1
            return image

    def release(self, image: Image) -> None:
        """Unload an image if no other plan has it. What was prepared of it must not be launched any more."""
        with self._lock:
            image.users -= 1
            if image.users or self._images.pop(image.content, None) is None:
                return
        self._driver.cuModuleUnload.status(image.module)  # after a fault there is nothing to unload

    def close(self) -> None:
        """Unload all kernels. What was prepared must not be launched any more."""
        with self._lock:
            modules = [*self._modules, *(image.module for image in self._images.values())]
            self._modules, self._functions, self._images = [], {}, {}
        for module in modules:
            self._driver.cuModuleUnload(module)

    def _prepared(self, function: Any, count: int, threads: int | None) -> Callable[..., int]:
        launch = self._driver.cuLaunchKernel.bind()
        words_of, pointers_of = c_uint64 * count, c_void_p * count

        def call(blocks: int, arguments: tuple[Any, ...]) -> int:
            *words, stream = arguments
            values = words_of(*words)
            first = addressof(values)
            pointers = pointers_of(*range(first, first + _WORD * count, _WORD))
            status: int = launch(function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, addressof(pointers), None)
            return status

        if threads is None:
            return lambda useful, *arguments: call(_blocks(useful), arguments)
        blocks = _blocks(threads)
        return lambda *arguments: call(blocks, arguments)

    def _check_parameters(self, function: Any, name: str, parameters: int) -> None:
        """Raise `BadProgram` unless a kernel has as many parameters as the program says, each of at most a word."""
        offset, size = c_size_t(), c_size_t()
        found, ask = 0, self._driver.cuFuncGetParamInfo
        while not (status := ask.status(function, found, byref(offset), byref(size))):
            if size.value > _WORD:
                raise BadProgram(f"parameter {found} of {name} has {size.value} bytes")
            found += 1
        if status != cuda.CUDA_ERROR_INVALID_VALUE:  # which is said of the index behind the last
            ask(function, found, byref(offset), byref(size))
        if found != parameters:
            raise BadProgram(f"{name} has {found} parameters, not {parameters}")

    def _function(self, name: str) -> Any:
        with self._lock:
            function = self._functions.get(name)
            if function is None:
                function = self._functions[name] = self._load(name)
            return function

    def _load(self, name: str) -> Any:
        module = self._loaded(self.known[name].text.encode())
        try:
            function = self._function_of(module, name)
        except BaseException:
            self._driver.cuModuleUnload.status(module)
            raise
        self._modules.append(module)
        return function

    def _loaded(self, content: bytes) -> Any:
        module = self._driver.CUmodule()
        self._driver.cuModuleLoadData(byref(module), cast(c_char_p(content), c_void_p))
        return module

    def _function_of(self, module: Any, name: str) -> Any:
        function = self._driver.CUfunction()
        self._driver.cuModuleGetFunction(byref(function), module, name.encode())
        return function


def _blocks(threads: int) -> int:
    return min(max(-(-threads // _THREADS), 1), _MOST_BLOCKS)
