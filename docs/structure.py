"""Draws the folders of the package, walks calls through them, and lists the records that they send.

``make structure`` writes ``structure.svg``, ``walk.txt`` and ``records.md`` of ``docs/architecture`` from the code. A
test fails while they are not what the code says.
"""

from __future__ import annotations

import ast
import html
import importlib
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Generator, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "atomr_trio"
TARGET = ROOT / "docs" / "architecture"

FACE = ("__init__.py", "testing", "_cli")
LAYERS: tuple[tuple[str, ...], ...] = (
    ("_device",),
    ("libraries",),
    ("_calls",),
    ("_transfers",),
    ("_arrays",),
    ("_generation",),
    ("_supervision",),
    ("_compiling", "_memory"),
    ("_values",),
    ("_wire",),
)
"""The folders of the user's side, the highest first. ``tests/repository/test_architecture.py`` checks the imports."""
WORKER = ("_worker", "libraries/*/engine", "_worker/base")


# --- the drawing ------------------------------------------------------------------------------------------------------


def files_of(folder: str) -> list[Path]:
    """The files of a folder; the engines of libraries belong to the worker's side."""
    if folder == "libraries/*/engine":
        return sorted((PACKAGE / "libraries").glob("*/engine*.py"))
    if folder.endswith(".py"):
        return [PACKAGE / folder]
    found = sorted((PACKAGE / folder).rglob("*.py"))
    if folder == "libraries":
        return [path for path in found if not path.name.startswith("engine")]
    return [path for path in found if folder != "_worker" or path.parent.name != "base"]


def says(folder: str) -> str:
    """What belongs there: the first sentence of its docstring."""
    if folder == "libraries/*/engine":
        return "Each turns the records of its library into calls of the C library."
    path = PACKAGE / folder
    text = ast.get_docstring(ast.parse((path if path.suffix else path / "__init__.py").read_text(encoding="utf-8")))
    return " ".join((text or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


def numbers(folder: str) -> str:
    """How many files and lines it has, to two digits."""
    files = files_of(folder)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    size = 10 ** max(0, len(str(lines)) - 2)
    return f"{len(files)} files, {round(lines / size) * size:,} lines" if len(files) > 1 else ""


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most so many characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def drawing() -> str:
    """The folders, the highest on top; what stands on another may import it."""
    row, parts = 62, []
    left, right = 560, 340

    def box(x: float, y: float, width: float, folder: str, kind: str) -> None:
        lines = wrapped(says(folder), int(width / 6.1))[:2]
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{row - 8}" rx="4"/>')
        name = "the public names" if folder == "__init__.py" else f"{folder}/" if "*" not in folder else folder
        parts.append(f'<text class="name" x="{x + 10}" y="{y + 18}">{html.escape(name)}</text>')
        parts.append(f'<text class="count" x="{x + width - 10}" y="{y + 18}">{numbers(folder)}</text>')
        for number, line in enumerate(lines):
            parts.append(f'<text class="say" x="{x + 10}" y="{y + 33 + 14 * number}">{html.escape(line)}</text>')

    rows = (FACE, *LAYERS)
    height = 50 + row * len(rows) + 20
    for number, folders in enumerate(rows):
        width = (left - 10 * (len(folders) - 1)) / len(folders)
        for place, folder in enumerate(folders):
            both = folder == "_wire"
            kind = "both" if both else "face" if number == 0 else "layer"
            box(20 + place * (width + 10), 44 + row * number, left + 20 + right if both else width, folder, kind)
    for number, folder in enumerate(WORKER):
        box(600, 44 + row * (len(rows) - 4 + number), right, folder, "worker")
    arrow = 44 + row * (len(rows) - 1) - 4
    parts.append('<text class="title" x="20" y="30">your process: trio</text>')
    parts.append(
        f'<text class="title" x="600" y="{44 + row * (len(rows) - 4) - 12}">the worker: standard library</text>'
    )
    parts.append(f'<text class="say" x="20" y="{arrow + row + 12}">A folder may import those below it.</text>')
    style = (
        ".layer,.face,.worker,.both{stroke:#6b8794;fill:#e4edf1} .face{fill:#fffdf8} .worker{fill:#fdf3ec}"
        " .both{fill:#e7e3d3} .name{font-size:14px;font-weight:600} .say{font-size:11.5px;fill:#45433d}"
        " .count{font-size:11px;fill:#45433d;text-anchor:end} .title{font-size:16px;font-weight:700}"
    )
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" font-family="system-ui, sans-serif" '
        f'role="img">\n  <title>The folders of the package</title>\n  <style>{style}</style>\n{body}\n</svg>\n'
    )


# --- the walk ---------------------------------------------------------------------------------------------------------


class Walk:
    """Awaits a call, and notes the functions of the package that it enters in its own task until it was sent."""

    def __init__(self, call: Awaitable[object], sent: Any) -> None:
        self.entered: list[tuple[str, str]] = []
        self._call = call
        self._sent = sent

    def _note(self, frame: Any, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            self.entered.append((str(Path(path).relative_to(PACKAGE)), frame.f_code.co_name))

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._call.__await__()
        value, noting = None, True
        while True:
            sys.setprofile(self._note if noting else None)
            try:
                trap = steps.send(value)
            except StopIteration:
                return
            finally:
                sys.setprofile(None)
                noting = noting and not self._sent()
            value = yield trap


async def walk() -> str:
    """The walks of a launch and of a product: files and calls, the first and the third time; the third in full."""
    import numpy as np
    import trio.testing

    import atomr_trio

    source = 'extern "C" __global__ void add(float *x, int n) { x[threadIdx.x] += n; }'
    lines: list[str] = []
    async with atomr_trio.open_device(backend="sim") as dev:
        kernel = await dev.nvrtc.compile(source, "add")
        x = await dev.to_device(np.zeros(32, np.float32))
        a = await dev.to_device(np.eye(8, dtype=np.float32))
        c = dev.zeros((8, 8), np.float32)
        calls = {
            "await kernel.launch(1, 32, x, 1)": lambda: kernel.launch(1, 32, x, 1),
            "await dev.blas.gemm(a, a, out=c)": lambda: dev.blas.gemm(a, a, out=c),
        }
        for name, call in calls.items():
            for time in (1, 2, 3):
                await trio.testing.wait_all_tasks_blocked(0.02)  # whether others are at work makes a difference
                before = dev.statistics().lanes[0].submitted
                walked = Walk(call(), lambda before=before: dev.statistics().lanes[0].submitted > before)
                await walked
                if time == 2:
                    continue
                files = Counter(path for path, _ in walked.entered)
                lines.append(f"{name}, time {time}: {len(walked.entered)} calls in {len(files)} files")
                lines += [f"    {line}" for line in (_stages if time == 3 else _folders)(walked.entered)]
                lines.append("")
    return "\n".join(lines)


def _folders(entered: list[tuple[str, str]]) -> Iterator[str]:
    """The files of each folder, in the order in which the walk first enters them."""
    found: dict[str, dict[str, None]] = {}
    for path, _ in entered:
        folder, _, file = path.rpartition("/")
        found.setdefault(folder, {})[file] = None
    return (f"{folder + '/':24}{', '.join(files)}" for folder, files in found.items())


def _stages(entered: list[tuple[str, str]]) -> Iterator[str]:
    """The functions, in the order of their first call, by files."""
    found: dict[str, dict[str, None]] = {}
    for path, function in entered:
        found.setdefault(path, {})[function] = None
    return (f"{path:32}{', '.join(functions)}" for path, functions in found.items())


# --- the records ------------------------------------------------------------------------------------------------------

RECORDS_HEAD = """# The records

What the two processes say to each other; `make structure` makes this page from the declarations in the code.
Your process writes a record by them, and the worker reads it by them.

A record is a header, the tickets that it waits for, the fields, and a tail whose meaning stands beside it.
The header (`_wire/protocol.py`) holds the ticket, the lane, the numbers of the engine and the verb, and two lengths.
A verb that *enqueues* only gives the GPU work, and one that *blocks* may hold up its lane's thread.
The role of an operand says what becomes of its array: it is read, written, or overwritten whole.
"""
FORMATS = {
    "Q": "u64",
    "q": "i64",
    "I": "u32",
    "i": "i32",
    "H": "u16",
    "h": "i16",
    "B": "u8",
    "b": "i8",
    "d": "f64",
    "f": "f32",
}


def declared(path: Path) -> dict[str, str]:
    """The names of the tables and verbs of a file, with the first line of what is said of each."""
    found = {}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) and behind.value.value
            found[node.targets[0].id] = str(said or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    return found


def layout(verb: Any) -> str:
    """The fields of a record, with their formats and roles."""
    formats = re.findall(r"\d*[a-zA-Z]", verb.struct.format.lstrip("<"))
    roles = {name: role.name.lower() for name, role in verb.roles.items()}
    shown = [
        f"{name} {FORMATS.get(form, f'{form[:-1]} bytes')}{f' ({roles[name]})' if name in roles else ''}"
        for name, form in zip(verb.fields, formats, strict=True)
    ]
    return ", ".join(shown)


def records() -> str:
    """The page of all records."""
    from atomr_trio._wire.protocol import Verb, VerbTable
    from atomr_trio._wire.records.plans import PlanTable

    parts = [RECORDS_HEAD]
    files = [*(PACKAGE / "_wire" / "records").glob("*.py"), *(PACKAGE / "libraries").glob("*/records*.py")]
    tables: dict[int, tuple[VerbTable, dict[str, str]]] = {}
    said_of: dict[str, str] = {}
    for path in sorted(files):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        said = declared(path)
        for name in said:
            value = vars(module).get(name)
            if isinstance(value, VerbTable):
                tables[value.number] = (value, said)
            if isinstance(value, Verb):
                said_of[value.operation] = said[name]
    for number, (table, _) in sorted(tables.items()):
        parts.append(f"\n## {table.engine}\n\nEngine {number}.\n")
        functions = getattr(table, "functions", ())
        if isinstance(table, PlanTable):
            parts.append(f"The programs of its plans may call {len(functions)} functions.\n")
        elif functions:
            parts.append(f"A call names one of {len(functions)} functions by its number; the tail has its arguments.\n")
        parts.append("\n| verb | how | fields | meaning |\n|---|---|---|---|\n")
        for verb in table.verbs:
            does = [verb.mode.value, *["answers"] * verb.answers, *["in graphs"] * verb.capturable]
            parts.append(f"| {verb.name} | {', '.join(does)} | {layout(verb)} | {said_of.get(verb.operation, '')} |\n")
    return "".join(parts)


if __name__ == "__main__":
    import trio

    (TARGET / "records.md").write_text(records(), encoding="utf-8")

    (TARGET / "structure.svg").write_text(drawing(), encoding="utf-8")
    (TARGET / "walk.txt").write_text(trio.run(walk), encoding="utf-8")
