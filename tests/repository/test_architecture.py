"""The rules of the architecture: which module may import which, read from the source and tried in fresh processes."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomr_trio
from support import ROOT, child_environment
from support.registered import TARGET, registrations, text_of
from support.structure import structure

TRIO_SIDE = ROOT / "atomr_trio"
BINDINGS = ROOT / "bindings"
TABLES = BINDINGS / "atomr_cuda"
SIMULATOR = BINDINGS / "atomr_sim"


def sources(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    assert found, f"there is nothing in {folder}"
    return found


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax of a file. No tree is garbage while it grows, and to look for some takes longer than to parse."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """All trees together take 150 MB."""
    yield
    tree_of.cache_clear()


def package_of(path: Path) -> list[str]:
    root = BINDINGS if path.is_relative_to(BINDINGS) else ROOT
    return list(path.relative_to(root).parent.parts)


def imported(path: Path, *, for_readers: bool = False) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file it stands, relative ones resolved.

    `from a import b` names both a and a.b, since b may be a module.
    Imports under `if TYPE_CHECKING` are for readers and type checkers, and are left out unless they are asked for.
    """
    return (module for module, real in _imports(path) if real or for_readers)


@functools.cache
def _imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Every module that a file names in an import, and whether that is one when the program runs."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    tree = tree_of(path)
    unreal = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        real = id(node) not in unreal
        if isinstance(node, ast.Import):
            yield from ((alias.name, real) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, real
            yield from ((f"{module}.{alias.name}", real) for alias in node.names)


def offenders(paths: list[Path], *forbidden: str) -> list[str]:
    """Each import of a forbidden module or of something inside it, as `file: module`."""
    return [
        f"{path.relative_to(ROOT)}: {module}"
        for path in paths
        for module in imported(path)
        if any(module == name or module.startswith(name + ".") for name in forbidden)
    ]


def roots(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imported(path)}


def calls(path: Path, *names: str) -> bool:
    """Whether a file calls or mentions an attribute or a function of one of these names."""
    return not _mentioned(path).isdisjoint(names)


@functools.cache
def _mentioned(path: Path) -> frozenset[str]:
    nodes = list(ast.walk(tree_of(path)))
    mentioned = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return frozenset(mentioned | {node.id for node in nodes if isinstance(node, ast.Name)})


def run_python(code: str) -> str:
    """Run code in a fresh interpreter that sees what this one sees; what it printed."""
    command = [sys.executable, "-P", "-c", code]
    answer = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# -- the bindings ------------------------------------------------------------------------------------------------------


def test_the_bindings_know_nothing_above_them():
    assert offenders(sources(BINDINGS), "atomr_trio") == []


def test_the_tables_do_not_know_the_simulator():
    assert offenders(sources(TABLES), "atomr_sim") == []


@pytest.mark.parametrize("path", sources(TABLES), ids=lambda path: str(path.relative_to(TABLES)))
def test_a_binding_imports_the_standard_library_and_the_finder(path):
    assert roots(path) <= set(sys.stdlib_module_names) | {"atomr_cuda", "cuda"}


@pytest.mark.parametrize("path", sources(SIMULATOR), ids=lambda path: str(path.relative_to(SIMULATOR)))
def test_the_simulator_imports_the_tables_and_what_computes(path):
    assert roots(path) <= set(sys.stdlib_module_names) | {"atomr_cuda", "atomr_sim", "numpy", "scipy"}


SIMULATED_LAYERS = ("ptx", "engine", "checks", "driver", "libraries")
"""The packages of the simulator, each above those that it may import. Modules beside them are below all."""


@pytest.mark.parametrize("layer", SIMULATED_LAYERS)
def test_a_layer_of_the_simulator_imports_nothing_of_a_higher_one(layer):
    higher = SIMULATED_LAYERS[SIMULATED_LAYERS.index(layer) + 1 :]
    found = [
        f"{path.relative_to(SIMULATOR)}: {module}"
        for path in sources(SIMULATOR / layer)
        for module in imported(path, for_readers=True)
        if module.startswith("atomr_sim.") and module.split(".")[1] in higher
    ]
    assert found == []


def test_what_lies_beside_the_layers_of_the_simulator_imports_none_of_them():
    beside = [path for path in SIMULATOR.glob("*.py") if path.name != "__init__.py"]
    assert offenders(beside, *(f"atomr_sim.{layer}" for layer in SIMULATED_LAYERS)) == []


def test_the_simulator_is_imported_where_it_is_chosen_and_not_before():
    loaded = run_python(
        "import importlib, pkgutil, sys, atomr_cuda, atomr_trio._worker.main\n"
        "for each in pkgutil.walk_packages(atomr_cuda.__path__, 'atomr_cuda.'): importlib.import_module(each.name)\n"
        "print('atomr_cuda.cusolver' in sys.modules, *(name for name in sys.modules if name.startswith('atomr_sim')))"
    )
    assert loaded.split() == ["True"]


# -- the trio side -----------------------------------------------------------------------------------------------------


def of_the_package(paths: list[Path], *allowed: str) -> list[str]:
    """Each import of a module of the package that is not in one of these folders, also one for type checkers alone."""
    return [
        f"{path.relative_to(ROOT)}: {module}"
        for path in paths
        for module in imported(path, for_readers=True)
        if module.startswith("atomr_trio.") and module.split(".")[1] not in allowed
    ]


def test_supervision_is_pure():
    policy = TRIO_SIDE / "_supervision" / "policy.py"
    assert roots(policy) - {"atomr_trio"} <= (set(sys.stdlib_module_names) - {"ctypes"}) | {"attrs", "attr"}
    assert of_the_package([policy], "_values") == []


WIRE, WORKER = TRIO_SIDE / "_wire", TRIO_SIDE / "_worker"
WORKER_BASE = WORKER / "base"
ENGINES = sorted((TRIO_SIDE / "libraries").glob("*/engine*.py"))
RECORDS = sorted((TRIO_SIDE / "libraries").glob("*/records*.py"))
REGISTERED = registrations()
DEPENDENCIES = {folder: {*each.requires, *each.uses} for folder, each in REGISTERED.items()}
"""Libraries that need others: their engines, their records or their types."""


def test_the_worker_side_has_neither_trio_nor_numpy_nor_attrs():
    paths = [*sources(WIRE), *sources(WORKER), *ENGINES, *RECORDS]
    assert offenders(paths, "trio", "numpy", "attrs", "attr", "outcome") == []


@pytest.mark.parametrize("path", [*ENGINES, *RECORDS], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_engine_can_be_imported_first(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    loaded = run_python(
        f"import sys, {module}; print(*sorted({{'trio', 'numpy', 'attrs', 'attr'}} & set(sys.modules)))"
    )
    assert loaded.split() == []


LAYERS = structure().LAYERS[::-1]
"""The folders of the user's side, each above those before it; those of one line do not know each other."""

FACE = ("", "__main__", "_cli", "plain", "pytest_plugin", "testing")
"""What is made of the package's public names; `plain`, `testing` and the plugin reach deeper."""


def layer_of(module: str) -> int | None:
    """The place among the layers of a module of the package; None for one of the worker's side or of the face."""
    folder = module.split(".")[1]
    return next((number for number, folders in enumerate(LAYERS) if folder in folders), None)


@pytest.mark.parametrize("folder", [folder for folders in LAYERS for folder in folders])
def test_a_layer_imports_nothing_of_a_higher_one(folder):
    """The face is above all. An engine is of the worker's side, and has its own rules."""
    allowed = [folder, *(lower for folders in LAYERS[: layer_of(f"atomr_trio.{folder}")] for lower in folders)]
    found = of_the_package([path for path in sources(TRIO_SIDE / folder) if path not in ENGINES], *allowed)
    assert [line for line in found if not line.endswith(": atomr_trio.Device")] == []  # see below


def test_every_folder_of_the_package_has_its_place():
    folders = {path.relative_to(TRIO_SIDE).parts[0].removesuffix(".py") for path in sources(TRIO_SIDE)}
    placed = {folder for layer in LAYERS for folder in layer} | {"_worker", "__init__", *FACE}
    assert folders <= placed


def test_the_public_device_is_named_below_it_only_where_a_property_returns_it():
    """An array and a module tell their device. It is the one thing that a lower layer takes from the face."""
    for path in [path for folders in LAYERS[:-1] for folder in folders for path in sources(TRIO_SIDE / folder)]:
        tree = tree_of(path)
        depth = len(path.relative_to(TRIO_SIDE).parts)
        names = [
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level == depth and node.module is None
            for alias in node.names
            if not (TRIO_SIDE / alias.name).exists()
        ]
        if not names:
            continue
        assert names == ["Device"], path
        returned = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and isinstance(node.returns, ast.Name)
            and node.returns.id == "Device"
            and node.name == "device"
        ]
        inside = {id(inner) for node in returned for inner in ast.walk(node)}
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Device"]
        assert uses, path
        assert all(id(node) in inside for node in uses), path


# -- sizes -------------------------------------------------------------------------------------------------------------

MOST_LINES, MOST_METHODS = 900, 45


def test_no_file_and_no_class_is_too_large():
    large = []
    for path in sources(TRIO_SIDE):
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        large += [f"{path.relative_to(ROOT)} has {lines} lines"] if lines > MOST_LINES else []
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                large += [f"{path.name}: {node.name} has {methods} methods"] if methods > MOST_METHODS else []
    assert large == []


# -- private members ---------------------------------------------------------------------------------------------------


def folder_of(path: Path) -> str:
    parts = path.relative_to(TRIO_SIDE).parts
    return "/".join(parts[: 2 if parts[0] == "libraries" else 1])


def is_name(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def members(path: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """Each class of a file: its name, the names of its bases, and its private members."""
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        names = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                names |= {inner.attr} if is_name(inner.value, "self") else set()
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                names.add(inner.target.id)
            elif isinstance(inner, ast.Assign):
                names |= {target.id for target in inner.targets if isinstance(target, ast.Name)}
        bases = {ast.unparse(base).split("[")[0] for base in node.bases}
        private = {name for name in names if name.startswith("_") and not name.startswith("__")}
        yield node.name, bases, {name for name in private if not name.endswith("_")}  # `_fields_` is a word of ctypes


def test_no_private_member_is_used_from_another_folder():
    """But for those of the objects that users hold: there an underscore keeps a name from the user, not from us."""
    classes = [(path, *each) for path in sources(TRIO_SIDE) for each in members(path)]
    held = {*atomr_trio.__all__, "NoPublicConstructor"}
    for _ in range(4):  # the classes that those are made of
        held |= {base for _, name, bases, _ in classes if name in held for base in bases}
    of_users = {member for _, name, _, found in classes if name in held for member in found}
    owners: dict[str, set[str]] = {}
    for path, _, _, found in classes:
        for member in found:
            owners.setdefault(member, set()).add(folder_of(path))
    offences = []
    for path in sources(TRIO_SIDE):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr in owners and not is_name(node.value, "self", "cls"):
                if node.attr not in of_users and folder_of(path) not in owners[node.attr]:
                    offences.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.attr}")
            elif isinstance(node, ast.ImportFrom) and node.level:
                package = package_of(path)
                home = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")][1:]
                same = "/".join(home).startswith(folder_of(path))
                private = [alias.name for alias in node.names if alias.name.startswith("_") and alias.asname is None]
                offences += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in private if not same]
    assert offences == []


def test_the_base_of_the_worker_rests_on_what_both_processes_know():
    found = of_the_package(sources(WORKER_BASE), "_wire")
    assert [line for line in found if "_worker.base" not in line] == []


def test_an_engine_rests_on_the_base_of_the_worker_and_its_own_library():
    found = []
    for path in (*ENGINES, *RECORDS):
        known = {path.parent.name, *DEPENDENCIES.get(path.parent.name, ())}
        for line in of_the_package([path], "_wire"):
            _, module = line.split(": ")
            parts = module.split(".")[1:]
            is_base = parts[:2] == ["_worker", "base"] and path in ENGINES
            is_library = parts[0] == "libraries" and (len(parts) < 3 or parts[1] in known)
            is_worker_side = len(parts) < 3 or parts[2].startswith(("records", "engine", "registration"))
            if parts != ["_worker"] and not (is_base or (is_library and is_worker_side)):
                found.append(line)
    assert found == []


def test_only_the_registry_and_the_main_module_know_the_engines():
    """The main module makes hot launches itself, by the engine of modules."""
    knowing = [*ENGINES, WORKER / "registry.py", WORKER / "main.py"]
    outside = [path for path in sources(TRIO_SIDE) if path not in knowing]
    engines = [
        line
        for line in of_the_package(outside)
        if (parts := line.split(": ")[1].split("."))[1] == "libraries"
        and len(parts) > 3
        and parts[3].startswith("engine")
    ]
    assert engines == []
    assert [line for line in of_the_package([*outside, *ENGINES]) if "_worker.registry" in line] == []


def test_the_list_of_libraries_is_what_their_registrations_say():
    """`make registered` writes it."""
    assert ast.dump(ast.parse(TARGET.read_text(encoding="utf-8"))) == ast.dump(ast.parse(text_of(REGISTERED)))


def test_no_two_libraries_have_the_same_number():
    numbers = [each.number for each in REGISTERED.values()]
    assert len(numbers) == len(set(numbers))
    assert not {0, 1, 20} & set(numbers), "they are those of the base"


def test_a_library_uses_only_those_that_it_names():
    """What several of them share lies in ``_calls``. The list of all, ``registered.py``, loads none of them."""
    found = []
    for path in sources(TRIO_SIDE / "libraries"):
        folder = path.relative_to(TRIO_SIDE / "libraries").parts[0]
        known = {folder, *DEPENDENCIES.get(folder, ())} if folder != "nvrtc" else {"nvrtc", "modules"}
        known.add("registered")
        for line in of_the_package([path]):
            parts = line.split(": ")[1].split(".")[1:]
            if parts[0] == "libraries" and len(parts) > 1 and parts[1] not in known and folder != "registered.py":
                found.append(line)
    assert found == []


def test_the_folder_of_a_library_is_empty_but_for_its_modules():
    for path in (TRIO_SIDE / "libraries").glob("*/__init__.py"):
        assert [type(node).__name__ for node in ast.parse(path.read_text(encoding="utf-8")).body] == ["Expr"], path


def test_nothing_imports_the_worker():
    """It is a process of its own, which is named on a command line."""
    others = [path for path in sources(TRIO_SIDE) if not path.is_relative_to(WORKER) and path not in ENGINES]
    found = [line for line in of_the_package(others) if ": atomr_trio._worker" in line]
    assert found == []


def test_the_trio_side_does_not_call_the_driver():
    sharing = sources(TRIO_SIDE / "_arrays" / "sharing")
    worker_side = (*sources(WORKER), *ENGINES)
    trio_side = [path for path in sources(TRIO_SIDE) if path not in (*worker_side, *sharing)]
    assert offenders(trio_side, "atomr_cuda.driver", "atomr_sim") == []


def test_only_the_device_opens_a_nursery():
    """What is offered for tests is a user, and plays several of them at a time."""
    library = [path for path in sources(TRIO_SIDE) if not path.is_relative_to(TRIO_SIDE / "testing")]
    openers = {str(path.relative_to(TRIO_SIDE)) for path in library if calls(path, "open_nursery")}
    names = ("lifetime", "supervisor", "mapping", "peer_check")
    assert openers <= {f"_device/{name}.py" for name in names}


def test_only_requests_short_launches_and_copies_and_lent_tasks_are_rescheduled():
    callers = {str(path.relative_to(TRIO_SIDE)) for path in sources(TRIO_SIDE) if calls(path, "reschedule")}
    assert callers <= {
        "_supervision/mailbox.py",
        "_calls/launching.py",
        "_transfers/sleeper.py",
        "plain/_lent_tasks.py",
    }


def test_the_commands_use_the_public_face():
    """The commands are users: from the package they import nothing private but what both processes know."""
    private = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in [*sources(TRIO_SIDE / "_cli"), TRIO_SIDE / "__main__.py"]
        for module in imported(path)
        if module.startswith("atomr_trio._") and module.split(".")[1] not in ("_cli", "_wire")
    ]
    assert private == []


# -- what an import costs ----------------------------------------------------------------------------------------------


def test_importing_the_package_is_lazy():
    loaded = run_python(
        "import sys, atomr_trio\n"
        "print(*sorted({'trio', 'numpy', 'attrs', 'attr', 'ctypes', 'cuda'} & set(sys.modules)))"
    )
    assert loaded.split() == []


def test_using_every_public_name_loads_no_cuda_library():
    maps = run_python(
        "import atomr_trio\n"
        "for name in atomr_trio.__all__: getattr(atomr_trio, name)\n"
        "print(open('/proc/self/maps').read())"
    )
    assert [line for line in maps.splitlines() if "libcuda" in line or "libnvrtc" in line] == []


def test_every_public_name_is_there_and_listed():
    listed = run_python("import atomr_trio; print(sorted(set(atomr_trio.__all__) - set(dir(atomr_trio))))")
    assert listed.strip() == "[]"
