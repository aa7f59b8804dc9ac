"""The enumerations of the driver API, with the names and numbers of ``cuda.h``.

They are those of 13.5, with the members that only 12.x has. A driver that is older than a member answers "invalid
value". Each is complete, except for the members that only count or bound the others (``CU_LIMIT_MAX``). Making all of
them takes 5 to 15 milliseconds, and a program needs few of them. So there is a file for each topic, and ``driver``
imports a file at the first use of one of its names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import *
    from .diagnosis import *
    from .graph import *
    from .launch import *
    from .memory import *
    from .module import *
    from .status import *
    from .stream import *

_NAMES = {
    "status": ("CUresult",),
    "device": (
        "CUdevice_attribute",
        "CUdevice_P2PAttribute",
        "CUcomputemode",
        "CUlimit",
        "CUexecAffinityType",
        "CUcigDataType",
        "CUdriverProcAddress_flags",
        "CUdriverProcAddressQueryResult",
    ),
    "memory": (
        "CUmemorytype",
        "CUpointer_attribute",
        "CUmem_advise",
        "CUmemLocationType",
        "CUmemAllocationType",
        "CUmemAllocationHandleType",
        "CUmemAllocationCompType",
        "CUmemAllocationGranularity_flags",
        "CUmemAccess_flags",
        "CUmemPool_attribute",
        "CUmemcpyFlags",
        "CUmemcpySrcAccessOrder",
    ),
    "stream": (
        "CUstreamBatchMemOpType",
        "CUstreamMemoryBarrier_flags",
        "CUstreamAtomicReductionOpType",
        "CUstreamAtomicReductionDataType",
        "CUstreamCaptureMode",
        "CUstreamCaptureStatus",
        "CUstreamUpdateCaptureDependencies_flags",
        "CUsynchronizationPolicy",
    ),
    "module": (
        "CUjit_option",
        "CUjit_target",
        "CUjit_fallback",
        "CUjit_cacheMode",
        "CUjitInputType",
        "CUlibraryOption",
        "CUmoduleLoadingMode",
        "CUfunctionLoadingState",
    ),
    "launch": (
        "CUfunction_attribute",
        "CUfunc_cache",
        "CUshared_carveout",
        "CUlaunchAttributeID",
        "CUaccessProperty",
        "CUclusterSchedulingPolicy",
        "CUlaunchMemSyncDomain",
        "CUlaunchAttributePortableClusterMode",
        "CUsharedMemoryMode",
    ),
    "graph": (
        "CUgraphNodeType",
        "CUgraphDependencyType",
        "CUgraphInstantiate_flags",
        "CUgraphInstantiateResult",
        "CUgraphExecUpdateResult",
        "CUgraphMem_attribute",
        "CUgraphDebugDot_flags",
    ),
    "diagnosis": ("CUcoredumpSettings",),
}

FILES: dict[str, str] = {name: file for file, names in _NAMES.items() for name in names}
"""The file of each enumeration, by its name."""
