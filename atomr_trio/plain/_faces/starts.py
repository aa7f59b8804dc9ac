"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Literal

    from ..._device.lifetime import OnFault
    from ..._generation.core import WorkerSource
    from ..._supervision.groups import OnDeviceFailed, Strategy
    from ..._supervision.policy import RestartPolicy
    from ..._values.findings import Check
    from ..._wire.backends import BackendName
    from .devices import Device, Devices


def start(
    index: int = 0,
    *,
    backend: BackendName | None = None,
    standby: int = 0,
    on_fault: OnFault = "survive",
    hang_timeout: float | None = None,
    close_timeout: float = 2.0,
    memory_limit: int | None = None,
    restart_policy: RestartPolicy | None = None,
    guarded: bool = False,
    workers: WorkerSource | None = None,
    spin: float | None = None,
    check: Check | Collection[Check] | None = None,
    plan_cache: int = 256,
) -> Device:
    """Open a GPU for a program without trio. The verbs are those of `open_device`, and each waits for its end.

    The device has a trio run in a thread of its own, and every thread may use it. A fault costs what it costs there:
    the calls that were running raise `ContextLost`, and the device goes on with its arrays intact. Ctrl-C ends a wait
    at once, and the device lives.

    - `index`: the number of the device, counted as the CUDA driver counts.
    - `backend`: `"cuda"` (`"gpu"` means the same), or `"sim"` for the simulator, which needs no GPU; the default is the
      value of ``ATOMR_TRIO_BACKEND``, else `"cuda"`.
    - `standby`: the number of workers that are kept ready beside the one in service, 0 to 4. After a fault one of them
      takes over in a few milliseconds; a new worker takes tenths of a second to start. Each needs a context, about 0.6
      GiB of device memory, and is started in the background.
    - `on_fault`: `"survive"`, or `"stale"`. With `"stale"` no array and no kernel survives a lost context, and using
      one raises `StaleArray` or `StaleKernel`.
    - `hang_timeout`: seconds that one command may run before its worker is killed; None for no limit. They count from
      when no other command can delay it any more, and for lanes that only wait for each other. The limit does not apply
      to a copy of more than 4 MiB of ordinary memory, in which the host takes part.
    - `close_timeout`: seconds that closing waits for started work, before it kills the worker.
    - `memory_limit`: bytes that the arrays' chunks and the workspaces of plans and graphs may take; by default 95 % of
      the memory that was free at opening, without 0.75 GiB for each standby.
    - `restart_policy`: the number of lost contexts that is tolerated; by default 3 within a minute.
    - `guarded`: the default for arrays: true puts each between unmapped addresses (see `Device.empty`).
    - `workers`: a source of worker processes, which takes them back, for example an `atomr_trio.testing.WorkerPool`; by
      default each is started when it is needed.
    - `spin`: seconds that an idle worker polls for work before it sleeps, at most: less while work comes further apart.
      Polling uses a processor, yields to every other thread, and saves the time of waking; 0 is never. The default is
      0.001, and 0.0001 for the simulator and for a program that may use fewer than 4 processors.
    - `check`: the simulator's checks of every access and barrier of a kernel: `"bounds"` (outside of arrays, and in
      freed ones), `"initialised"` (reads of memory that was never written), `"races"` (of threads, in global and shared
      memory), `"barriers"` (that not all threads of a block reach), several of these, or `"all"`. A kernel with a
      finding ends like one with a fault, by a `ContextLost` that has `ContextLost.findings`. The default is the value
      of ``ATOMR_TRIO_CHECK``, names with commas between them, else none. For a GPU use NVIDIA's compute-sanitizer.
    - `plan_cache`: the number of plans of libraries that workers keep. The one that was not used for longest is given
      up, and made again when it is used.

    It is closed by `close`, at the end of a ``with`` block, when nothing refers to it or to an object of it any more,
    and at the exit of the interpreter, however that ends. Forked children get `DeviceFailed` from every call.

    Raises as `atomr_trio.open_device` does, and `OutsideRun` in a task of trio: there use `open_device`.
    """
    from ..._device.open import open_device
    from .._twins import begun

    device: Device = begun(
        lambda: open_device(
            index,
            backend=backend,
            standby=standby,
            on_fault=on_fault,
            hang_timeout=hang_timeout,
            close_timeout=close_timeout,
            memory_limit=memory_limit,
            restart_policy=restart_policy,
            guarded=guarded,
            workers=workers,
            spin=spin,
            check=check,
            plan_cache=plan_cache,
        ),
        "atomr_trio.start",
    )
    return device


def start_devices(
    devices: Sequence[int | str] | Literal["all"] = "all",
    *,
    count: int | None = None,
    strategy: Strategy = "one_for_one",
    on_device_failed: OnDeviceFailed = "end",
    group_policy: RestartPolicy | None = None,
    peers: bool = False,
    backend: BackendName | None = None,
    standby: int = 0,
    on_fault: OnFault = "survive",
    hang_timeout: float | None = None,
    close_timeout: float = 2.0,
    memory_limit: int | None = None,
    restart_policy: RestartPolicy | None = None,
    guarded: bool = False,
    workers: WorkerSource | None = None,
    spin: float | None = None,
    check: Check | Collection[Check] | None = None,
    plan_cache: int = 256,
) -> Devices:
    """Open several GPUs as one group, for a program without trio: `open_devices` with verbs that wait.

    The group has a trio run in a thread of its own, and every thread may use it. A fault of one device costs the others
    nothing. If one cannot be opened, the others are closed, and its error is raised.

    - `devices`: a sequence of indices, counted as the CUDA driver counts, and of UUIDs, ``"GPU-..."``, of which the
      beginning is enough; of a part of a divided GPU ``"MIG-..."``. The default is `"all"`. With
      ``CUDA_VISIBLE_DEVICES`` set, only the devices that it shows count, in its order.
    - `count`: the number of devices to open, the first ones of `devices`; by default all of those.
    - `strategy`: what is restarted when one device loses its context: `"one_for_one"` that device alone,
      `"all_for_one"` every device, `"rest_for_one"` that one and those named after it. A restart ordered so raises
      `ContextLost` where work was running, like every loss, and costs that device nothing of its `restart_policy`.
    - `on_device_failed`: what happens when the supervision gives a device up. With `"end"` its `DeviceFailed` is raised
      by `close`. With `"drop"` the device is closed, its arrays are lost, and the others go on; the failure of the last
      one is raised by `close`.
    - `group_policy`: the failures of all devices together, losses and failed starts, that are tolerated; by default 3
      for each device within a minute. When it is spent the block ends, with `"drop"` too. Of the policy only
      `intensity` and `period` count.
    - `peers`: true lets kernels of one device use arrays of another.
    - `backend`: `"cuda"`, which may be called `"gpu"` too, or `"sim"`; the default is that of `start`.
    - `standby`: the number of workers kept ready for each device, 0 to 4.
    - `restart_policy`: the number of lost contexts that is tolerated of each device; by default 3 within a minute.
    - `memory_limit`: bytes that each device's arrays and workspaces may take; the default is that of `start`.
    - `workers`: a source of worker processes of every device, for example an `atomr_trio.testing.WorkerPools`.
    - `hang_timeout` and `close_timeout` (seconds), `on_fault`, `guarded`, `spin` (seconds), `check` and `plan_cache` (a
      number of plans): those of `start`, for each device.

    It is closed by `close`, at the end of a ``with`` block, when nothing refers to it or to an object of it any more,
    and at the exit of the interpreter, however that ends. Forked children get `DeviceFailed` from every call.

    Raises as `atomr_trio.open_devices` does, and `OutsideRun` in a task of trio: there use `open_devices`.
    """
    from ..._device.open import open_devices
    from .._twins import begun

    device: Devices = begun(
        lambda: open_devices(
            devices,
            count=count,
            strategy=strategy,
            on_device_failed=on_device_failed,
            group_policy=group_policy,
            peers=peers,
            backend=backend,
            standby=standby,
            on_fault=on_fault,
            hang_timeout=hang_timeout,
            close_timeout=close_timeout,
            memory_limit=memory_limit,
            restart_policy=restart_policy,
            guarded=guarded,
            workers=workers,
            spin=spin,
            check=check,
            plan_cache=plan_cache,
        ),
        "atomr_trio.start_devices",
    )
    return device
