"""The probe beside a compile, in a thread of its own; what it tells becomes part of the result.

NVRTC 12 and 13 take one program at a time in a process, so for now the two follow each other in NVRTC. The thread lets
them overlap wherever the compiler does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

import attrs

from atomr_trio._compiling.cancellation import Cancellation
from atomr_trio._compiling.compiler import CompiledProgram, Prepare
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._compiling.probe import can_probe, likely_kernels, probe_rest
from atomr_trio._compiling.told import Told, with_reads, with_types
from atomr_trio._values.long_texts import PTX_PIECE, pieces
from atomr_trio._values.signatures import codes_of

__all__ = ["Probe", "Probing"]


class Probe(Protocol):
    """The function that asks the compiler: `probe.probe`, or its replacement in a test."""

    def __call__(
        self,
        source: str,
        options: NvrtcOptions,
        target: str,
        kernels: Sequence[str],
        prepare: Prepare,
        over: Callable[[], bool],
    ) -> dict[str, Told]: ...


class Probing:
    """The probes of one compile; a context manager around it.

    `cancellation` ends them with the compile. If the compile fails, no further one begins.
    """

    def __init__(
        self, source: str, options: NvrtcOptions, target: str, probe: Probe, cancellation: Cancellation
    ) -> None:
        self._source = source
        self._options = options
        self._target = target
        self._probe = probe
        self._cancellation = cancellation
        self._failed = False
        self._told: dict[str, Told] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if can_probe(self._options):
            kernels = likely_kernels(self._source, self._options)
            if kernels:
                self._begin(kernels)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._failed = error is not None

    def _begin(self, kernels: Sequence[str]) -> None:
        thread = threading.Thread(target=self._ask, args=(kernels,), name="nvrtc types", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: what it would have told is asked for afterwards
            return
        self._thread = thread

    def _ask(self, kernels: Sequence[str]) -> None:
        attach = self._cancellation.attach
        self._told |= self._probe(self._source, self._options, self._target, kernels, attach, lambda: self._failed)

    def applied(self, program: CompiledProgram) -> CompiledProgram:
        """Return the program with the types of its kernels, and with what is proven of their reads.

        Waits for the probe. Kernels that it knew nothing of are asked for now, by the names in the image.
        """
        if can_probe(self._options):
            if self._thread is not None:
                self._thread.join()
            rest = probe_rest(program, self._told)
            if self._thread is None and program.ltoir is not None:
                rest = list(likely_kernels(self._source, self._options))
            if rest:
                self._ask(rest)
        entries = {name: with_types(signature, self._told.get(name)) for name, signature in program.entries.items()}
        if not self._options.signatures:
            entries = dict(program.entries)
        told = self._told if program.ltoir is not None else {}
        codes = codes_of(pieces(program.ptx.decode(), PTX_PIECE))
        return attrs.evolve(program, entries=with_reads(entries, codes), told=MappingProxyType(dict(told)))
