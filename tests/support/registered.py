"""Writes ``atomr_trio/libraries/registered.py`` from the registrations of the libraries: `make registered`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from atomr_trio._wire.registration import Registration

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "atomr_trio" / "libraries"
TARGET = FOLDER / "registered.py"

HEAD = '''"""The registered libraries. Made by `make registered` from ``libraries/*/registration.py``: not to be edited.

Only names and strings are loaded with this file, on either side of the process boundary.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .._calls.batch_sender import BatchSender
    from .._calls.recorded import CallRecorder
    from .._generation.core import DeviceCore
{imports}

__all__ = [{public}]

FOLDERS: Final = ({folders})
"""The folders of the libraries that have engines, each behind those that it requires."""

ACTORS: Final = ({actors})
"""The names of the actors of libraries, which are also those of their engines and of their properties."""

RECORDED: Final = {recorded}
"""The names of the properties of a recorder of graphs: the libraries whose calls can be captured."""

HOMES: Final[dict[str, tuple[str, ...]]] = {{{homes}}}
"""The module of each public name."""


@functools.cache
def _verbs(folder: str) -> Any:
    """Return the module of a library's verbs."""
    return importlib.import_module(f".{{folder}}.verbs", __package__)


class DeviceLibraries:
    """The properties of `Device` for the libraries."""

    _core: DeviceCore
'''
DEVICE_PROPERTY = '''
    @functools.cached_property
    def {name}(self) -> {verbs}:
        """{summary}: `await dev.{name}.{example}`."""
        from .{folder}.verbs import {verbs}

        return {verbs}(self._core)
'''
BATCH_HEAD = '''

class BatchLibraries:
    """The properties of `Batch` for the libraries: the same verbs, without ``await``."""

    __slots__ = ("_libraries", "_library_arguments")

    def __init__(self, device: DeviceCore, sender: BatchSender) -> None:
        self._library_arguments = device, sender
        self._libraries: dict[str, Any] = {}

    def _make(self, folder: str, form: str) -> Any:
        library = self._libraries[folder] = getattr(_verbs(folder), form)(*self._library_arguments)
        return library
'''
BATCH_PROPERTY = '''
    @property
    def {name}(self) -> {batch_verbs}:
        """{summary}: `batch.{name}.{example}`, done at the end of the batch."""
        library: {batch_verbs} = self._libraries.get("{folder}") or self._make("{folder}", "{batch_verbs}")
        return library
'''
RECORDER_HEAD = '''

class RecorderLibraries:
    """The properties of `GraphRecorder` for the libraries whose calls can be captured: the same verbs, recorded."""

    __slots__ = ("_libraries", "_library_arguments")

    def __init__(self, device: DeviceCore, recorder: CallRecorder) -> None:
        self._library_arguments = device, recorder
        self._libraries: dict[str, Any] = {}

    def _make(self, folder: str, form: str) -> Any:
        library = self._libraries[folder] = getattr(_verbs(folder), form)(*self._library_arguments)
        return library
'''
RECORDER_PROPERTY = '''
    @property
    def {name}(self) -> {recorded_verbs}:
        """{summary}: `graph.{name}.{example}`, done with each launch of the graph."""
        library: {recorded_verbs} = self._libraries.get("{folder}") or self._make("{folder}", "{recorded_verbs}")
        return library
'''


def registrations(folder: Path = FOLDER, package: str = "atomr_trio.libraries") -> dict[str, Registration]:
    """The registration of every library, by its folder, each behind those that it requires."""
    found = {
        path.parent.name: importlib.import_module(f"{package}.{path.parent.name}.registration").REGISTRATION
        for path in sorted(folder.glob("*/registration.py"))
    }
    ordered: dict[str, Registration] = {}
    while len(ordered) < len(found):
        ready = [name for name, each in found.items() if name not in ordered and ordered.keys() >= {*each.requires}]
        if not ready:
            sys.exit(f"these libraries require each other, or one that there is not: {found.keys() - ordered.keys()}")
        ordered[ready[0]] = found[ready[0]]
    return ordered


def text_of(libraries: dict[str, Registration]) -> str:
    """The file."""
    with_verbs = {folder: each for folder, each in sorted(libraries.items()) if each.verbs}
    classes = {
        folder: sorted(filter(None, (each.verbs, each.batch_verbs, each.recorded_verbs)))
        for folder, each in with_verbs.items()
    }
    head = HEAD.format(
        imports="\n".join(f"    from .{folder}.verbs import {', '.join(names)}" for folder, names in classes.items()),
        public=_listed(sorted(name for names in classes.values() for name in names)),
        folders=_listed(libraries),
        actors=_listed(each.name for each in with_verbs.values()),
        recorded=tuple(each.name for each in with_verbs.values() if each.recorded_verbs),
        homes=", ".join(f'"libraries.{folder}.verbs": ({_listed(names)})' for folder, names in classes.items()),
    )
    each_property = [(folder, each._asdict() | {"folder": folder}) for folder, each in with_verbs.items()]
    device = "".join(DEVICE_PROPERTY.format(**fields) for _, fields in each_property)
    batch = "".join(BATCH_PROPERTY.format(**fields) for _, fields in each_property)
    recorder = "".join(RECORDER_PROPERTY.format(**fields) for _, fields in each_property if fields["recorded_verbs"])
    return head + device + BATCH_HEAD + batch + RECORDER_HEAD + recorder


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


if __name__ == "__main__":
    TARGET.write_text(text_of(registrations()), encoding="utf-8")
