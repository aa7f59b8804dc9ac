"""The CUDA driver API (libcuda) as a ctypes table.

Names are those of ``cuda.h``. Where the header maps a name to a versioned symbol (``cuMemAlloc`` to ``cuMemAlloc_v2``),
the plain name is used here and the symbol stands in its line. Numbers and layouts are those of ``cuda.h`` 13.0, which
agree with 12.x in everything that both have; a function that only one of them has says so, and calling it on the other
raises ``SymbolMissing``.

This file declares, and does nothing else: no call is made at import, and no library is loaded before the first call.

Pointers to plain values (``int *``, ``size_t *``) are declared with their type, so that ctypes checks what it is given.
Arrays of addresses and buffers are ``c_void_p``: they also take a plain integer address, which is what costs least.
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    Union,
    byref,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_ulonglong,
    c_ushort,
    c_void_p,
)
from enum import IntEnum

from ._library import Function, Library

# Types ---------------------------------------------------------------------------------------------------------------

CUdevice = c_int
CUdeviceptr = c_uint64
CUcontext = c_void_p
CUstream = c_void_p
CUevent = c_void_p
CUmodule = c_void_p
CUfunction = c_void_p
CUarray = c_void_p
CUmemGenericAllocationHandle = c_uint64

# Constants -----------------------------------------------------------------------------------------------------------

CUDA_SUCCESS = 0

CU_CTX_SCHED_AUTO = 0x00
CU_CTX_SCHED_SPIN = 0x01
CU_CTX_SCHED_YIELD = 0x02
CU_CTX_SCHED_BLOCKING_SYNC = 0x04
CU_CTX_MAP_HOST = 0x08
CU_CTX_LMEM_RESIZE_TO_MAX = 0x10

CU_STREAM_DEFAULT = 0x0
CU_STREAM_NON_BLOCKING = 0x1
CU_STREAM_LEGACY = 0x1
CU_STREAM_PER_THREAD = 0x2

CU_STREAM_WAIT_VALUE_GEQ = 0x0
CU_STREAM_WAIT_VALUE_EQ = 0x1
CU_STREAM_WAIT_VALUE_AND = 0x2
CU_STREAM_WAIT_VALUE_NOR = 0x3
CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30
CU_STREAM_WRITE_VALUE_DEFAULT = 0x0
CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 0x1

CU_EVENT_DEFAULT = 0x0
CU_EVENT_BLOCKING_SYNC = 0x1
CU_EVENT_DISABLE_TIMING = 0x2
CU_EVENT_INTERPROCESS = 0x4
CU_EVENT_WAIT_DEFAULT = 0x0

CU_MEMHOSTALLOC_PORTABLE = 0x01
CU_MEMHOSTALLOC_DEVICEMAP = 0x02
CU_MEMHOSTALLOC_WRITECOMBINED = 0x04
CU_MEMHOSTREGISTER_PORTABLE = 0x01
CU_MEMHOSTREGISTER_DEVICEMAP = 0x02
CU_MEMHOSTREGISTER_IOMEMORY = 0x04
CU_MEMHOSTREGISTER_READ_ONLY = 0x08

CU_LAUNCH_PARAM_END = 0x00
CU_LAUNCH_PARAM_BUFFER_POINTER = 0x01
CU_LAUNCH_PARAM_BUFFER_SIZE = 0x02


class CUresult(IntEnum):
    """What a driver function returns; 0 is success."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_DEINITIALIZED = 4
    CUDA_ERROR_PROFILER_DISABLED = 5
    CUDA_ERROR_PROFILER_NOT_INITIALIZED = 6
    CUDA_ERROR_PROFILER_ALREADY_STARTED = 7
    CUDA_ERROR_PROFILER_ALREADY_STOPPED = 8
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_DEVICE_NOT_LICENSED = 102
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT = 202
    CUDA_ERROR_MAP_FAILED = 205
    CUDA_ERROR_UNMAP_FAILED = 206
    CUDA_ERROR_ARRAY_IS_MAPPED = 207
    CUDA_ERROR_ALREADY_MAPPED = 208
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_ALREADY_ACQUIRED = 210
    CUDA_ERROR_NOT_MAPPED = 211
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY = 212
    CUDA_ERROR_NOT_MAPPED_AS_POINTER = 213
    CUDA_ERROR_ECC_UNCORRECTABLE = 214
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE = 216
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT = 219
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225
    CUDA_ERROR_CONTAINED = 226
    CUDA_ERROR_INVALID_SOURCE = 300
    CUDA_ERROR_FILE_NOT_FOUND = 301
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303
    CUDA_ERROR_OPERATING_SYSTEM = 304
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_LOSSY_QUERY = 402
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_LAUNCH_TIMEOUT = 702
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_ASSERT = 710
    CUDA_ERROR_TOO_MANY_PEERS = 711
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715
    CUDA_ERROR_MISALIGNED_ADDRESS = 716
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717
    CUDA_ERROR_INVALID_PC = 718
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_SYSTEM_NOT_READY = 802
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805
    CUDA_ERROR_MPS_RPC_FAILURE = 806
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED = 809
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810
    CUDA_ERROR_CDP_NOT_SUPPORTED = 811
    CUDA_ERROR_CDP_VERSION_MISMATCH = 812
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906
    CUDA_ERROR_CAPTURED_EVENT = 907
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908
    CUDA_ERROR_TIMEOUT = 909
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910
    CUDA_ERROR_EXTERNAL_DEVICE = 911
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912
    CUDA_ERROR_FUNCTION_NOT_LOADED = 913
    CUDA_ERROR_INVALID_RESOURCE_TYPE = 914
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915
    CUDA_ERROR_KEY_ROTATION = 916
    CUDA_ERROR_UNKNOWN = 999


class CUdevice_attribute(IntEnum):
    """What ``cuDeviceGetAttribute`` can be asked; names that share a number are the same question."""

    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8
    CU_DEVICE_ATTRIBUTE_SHARED_MEMORY_PER_BLOCK = 8
    CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10
    CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12
    CU_DEVICE_ATTRIBUTE_REGISTERS_PER_BLOCK = 12
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13
    CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14
    CU_DEVICE_ATTRIBUTE_GPU_OVERLAP = 15
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT = 17
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH = 21
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH = 22
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT = 23
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH = 24
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT = 25
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH = 26
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH = 27
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT = 28
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS = 29
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_ARRAY_WIDTH = 27
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_ARRAY_HEIGHT = 28
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES = 29
    CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT = 30
    CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31
    CU_DEVICE_ATTRIBUTE_ECC_ENABLED = 32
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34
    CU_DEVICE_ATTRIBUTE_TCC_DRIVER = 35
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH = 42
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS = 43
    CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER = 44
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH = 45
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT = 46
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE = 47
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE = 48
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE = 49
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50
    CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH = 52
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH = 53
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS = 54
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH = 55
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH = 56
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT = 57
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH = 58
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT = 59
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH = 60
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH = 61
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS = 62
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH = 63
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT = 64
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS = 65
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH = 66
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH = 67
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS = 68
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH = 69
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH = 70
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT = 71
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH = 72
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH = 73
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT = 74
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH = 77
    CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78
    CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED = 79
    CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED = 80
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83
    CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD = 84
    CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID = 85
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED = 86
    CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO = 87
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89
    CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 = 92
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1 = 93
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1 = 94
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH = 96
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101
    CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED = 104
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED = 105
    CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106
    CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED = 107
    CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE = 108
    CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE = 109
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110
    CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111
    CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED = 112
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113
    CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED = 114
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119
    CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH = 120
    CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED = 121
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR = 123
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124
    CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125
    CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT = 126
    CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED = 127
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128
    CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS = 129
    CU_DEVICE_ATTRIBUTE_NUMA_CONFIG = 130
    CU_DEVICE_ATTRIBUTE_NUMA_ID = 131
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134
    CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED = 135
    CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK = 136
    CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH = 137
    CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED = 138
    CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID = 139
    CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID = 140
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED = 142
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED = 143
    CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED = 144
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145
    CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED = 146
    CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED = 147


class CUfunction_attribute(IntEnum):
    """What ``cuFuncGetAttribute`` can be asked and ``cuFuncSetAttribute`` can set."""

    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
    CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6
    CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
    CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET = 10
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH = 11
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT = 12
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH = 13
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
    CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15


class CUjit_option(IntEnum):
    """Options of ``cuModuleLoadDataEx``; each has a value of pointer size."""

    CU_JIT_MAX_REGISTERS = 0
    CU_JIT_THREADS_PER_BLOCK = 1
    CU_JIT_WALL_TIME = 2
    CU_JIT_INFO_LOG_BUFFER = 3
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4
    CU_JIT_ERROR_LOG_BUFFER = 5
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
    CU_JIT_OPTIMIZATION_LEVEL = 7
    CU_JIT_TARGET_FROM_CUCONTEXT = 8
    CU_JIT_TARGET = 9
    CU_JIT_FALLBACK_STRATEGY = 10
    CU_JIT_GENERATE_DEBUG_INFO = 11
    CU_JIT_LOG_VERBOSE = 12
    CU_JIT_GENERATE_LINE_INFO = 13
    CU_JIT_CACHE_MODE = 14
    CU_JIT_NEW_SM3X_OPT = 15
    CU_JIT_FAST_COMPILE = 16
    CU_JIT_GLOBAL_SYMBOL_NAMES = 17
    CU_JIT_GLOBAL_SYMBOL_ADDRESSES = 18
    CU_JIT_GLOBAL_SYMBOL_COUNT = 19
    CU_JIT_LTO = 20
    CU_JIT_FTZ = 21
    CU_JIT_PREC_DIV = 22
    CU_JIT_PREC_SQRT = 23
    CU_JIT_FMA = 24
    CU_JIT_REFERENCED_KERNEL_NAMES = 25
    CU_JIT_REFERENCED_KERNEL_COUNT = 26
    CU_JIT_REFERENCED_VARIABLE_NAMES = 27
    CU_JIT_REFERENCED_VARIABLE_COUNT = 28
    CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES = 29
    CU_JIT_POSITION_INDEPENDENT_CODE = 30
    CU_JIT_MIN_CTA_PER_SM = 31
    CU_JIT_MAX_THREADS_PER_BLOCK = 32
    CU_JIT_OVERRIDE_DIRECTIVE_VALUES = 33
    CU_JIT_SPLIT_COMPILE = 34


class CUpointer_attribute(IntEnum):
    """What ``cuPointerGetAttribute`` can be asked."""

    CU_POINTER_ATTRIBUTE_CONTEXT = 1
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4
    CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12
    CU_POINTER_ATTRIBUTE_MAPPED = 13
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20
    CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21


class CUlimit(IntEnum):
    """Limits of a context."""

    CU_LIMIT_STACK_SIZE = 0
    CU_LIMIT_PRINTF_FIFO_SIZE = 1
    CU_LIMIT_MALLOC_HEAP_SIZE = 2
    CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4
    CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6
    CU_LIMIT_SHMEM_SIZE = 7
    CU_LIMIT_CIG_ENABLED = 8
    CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED = 9


class CUcomputemode(IntEnum):
    """Values of ``CU_DEVICE_ATTRIBUTE_COMPUTE_MODE``."""

    CU_COMPUTEMODE_DEFAULT = 0
    CU_COMPUTEMODE_PROHIBITED = 2
    CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3


class CUmemorytype(IntEnum):
    """Where an operand of a 2D copy lies."""

    CU_MEMORYTYPE_HOST = 1
    CU_MEMORYTYPE_DEVICE = 2
    CU_MEMORYTYPE_ARRAY = 3
    CU_MEMORYTYPE_UNIFIED = 4


class CUmemLocationType(IntEnum):
    """Where physical memory lies."""

    CU_MEM_LOCATION_TYPE_INVALID = 0
    CU_MEM_LOCATION_TYPE_NONE = 0
    CU_MEM_LOCATION_TYPE_DEVICE = 1
    CU_MEM_LOCATION_TYPE_HOST = 2
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4


class CUmemAllocationType(IntEnum):
    """The kind of physical memory."""

    CU_MEM_ALLOCATION_TYPE_INVALID = 0
    CU_MEM_ALLOCATION_TYPE_PINNED = 1
    CU_MEM_ALLOCATION_TYPE_MANAGED = 2


class CUmemAllocationHandleType(IntEnum):
    """How physical memory can be handed to another process; values combine."""

    CU_MEM_HANDLE_TYPE_NONE = 0
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
    CU_MEM_HANDLE_TYPE_WIN32 = 2
    CU_MEM_HANDLE_TYPE_WIN32_KMT = 4
    CU_MEM_HANDLE_TYPE_FABRIC = 8


class CUmemAccess_flags(IntEnum):
    """What a location may do with mapped memory."""

    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3


class CUmemAllocationGranularity_flags(IntEnum):
    """Which granularity is asked for."""

    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1


class CUlaunchAttributeID(IntEnum):
    """Attributes of a launch."""

    CU_LAUNCH_ATTRIBUTE_IGNORE = 0
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT = 7
    CU_LAUNCH_ATTRIBUTE_PRIORITY = 8
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10
    CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11
    CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12
    CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14
    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING = 16


# Structures ----------------------------------------------------------------------------------------------------------


class CUuuid(Structure):
    """cuda.h, since CUDA 9.2."""

    _fields_ = [("bytes", c_ubyte * 16)]


class CUmemLocation(Structure):
    """cuda.h, since CUDA 10.2."""

    _fields_ = [("type", c_int), ("id", c_int)]


class CUmemAllocationFlags(Structure):
    """cuda.h, since CUDA 10.2: the member ``allocFlags`` of ``CUmemAllocationProp``, which has no name there."""

    _fields_ = [
        ("compressionType", c_ubyte),
        ("gpuDirectRDMACapable", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class CUmemAllocationProp(Structure):
    """cuda.h, since CUDA 10.2."""

    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", CUmemLocation),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", CUmemAllocationFlags),
    ]


class CUmemAccessDesc(Structure):
    """cuda.h, since CUDA 10.2."""

    _fields_ = [("location", CUmemLocation), ("flags", c_int)]


class CUdim3(Structure):
    """cuda.h, since CUDA 11.8: three counts, a member of ``CUlaunchAttributeValue`` which has no name there."""

    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class CUlaunchProgrammaticEvent(Structure):
    """cuda.h, since CUDA 11.8: the member ``programmaticEvent`` of ``CUlaunchAttributeValue``."""

    _fields_ = [("event", CUevent), ("flags", c_int), ("triggerAtBlockStart", c_int)]


class CUlaunchCompletionEvent(Structure):
    """cuda.h, since CUDA 12.3: the member ``launchCompletionEvent`` of ``CUlaunchAttributeValue``."""

    _fields_ = [("event", CUevent), ("flags", c_int)]


class CUlaunchAttributeValue(Union):
    """cuda.h, since CUDA 11.8; always 64 bytes."""

    _fields_ = [
        ("pad", c_char * 64),
        ("cooperative", c_int),
        ("clusterDim", CUdim3),
        ("clusterSchedulingPolicyPreference", c_int),
        ("programmaticStreamSerializationAllowed", c_int),
        ("programmaticEvent", CUlaunchProgrammaticEvent),
        ("launchCompletionEvent", CUlaunchCompletionEvent),
        ("priority", c_int),
        ("memSyncDomain", c_int),
        ("preferredClusterDim", CUdim3),
        ("sharedMemCarveout", c_uint),
    ]


class CUlaunchAttribute(Structure):
    """cuda.h, since CUDA 11.8."""

    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", CUlaunchAttributeValue)]


class CUlaunchConfig(Structure):
    """cuda.h, since CUDA 11.8."""

    _fields_ = [
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint),
        ("hStream", CUstream),
        ("attrs", POINTER(CUlaunchAttribute)),
        ("numAttrs", c_uint),
    ]


class CUDA_MEMCPY2D(Structure):
    """cuda.h, since CUDA 3.2 (``CUDA_MEMCPY2D_v2``)."""

    _fields_ = [
        ("srcXInBytes", c_size_t),
        ("srcY", c_size_t),
        ("srcMemoryType", c_int),
        ("srcHost", c_void_p),
        ("srcDevice", CUdeviceptr),
        ("srcArray", CUarray),
        ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t),
        ("dstY", c_size_t),
        ("dstMemoryType", c_int),
        ("dstHost", c_void_p),
        ("dstDevice", CUdeviceptr),
        ("dstArray", CUarray),
        ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t),
        ("Height", c_size_t),
    ]


# The library ---------------------------------------------------------------------------------------------------------


def _describe(status: int) -> tuple[str, str]:
    """The driver's own name and text for a status; the table above when the driver does not know it."""
    words = []
    for ask in (cuGetErrorName, cuGetErrorString):
        answer = c_char_p()
        if ask.status(status, byref(answer)) == CUDA_SUCCESS and answer.value is not None:
            words.append(answer.value.decode(errors="replace"))
    if len(words) == 2:
        return words[0], words[1]
    known = {int(member): member.name for member in CUresult}
    return known.get(status, "unknown status"), "the driver has no text for this status"


_driver = Library(
    "cuda",
    sonames=("libcuda.so.1",),
    known_files=("/usr/lib/wsl/lib/libcuda.so.1",),
    describe=_describe,
)
library: Library = _driver

# Initialisation, errors, devices.
cuInit: Function = _driver("cuInit", c_uint)
cuDriverGetVersion: Function = _driver("cuDriverGetVersion", POINTER(c_int))
cuGetErrorName: Function = _driver("cuGetErrorName", c_int, POINTER(c_char_p))
cuGetErrorString: Function = _driver("cuGetErrorString", c_int, POINTER(c_char_p))
cuDeviceGet: Function = _driver("cuDeviceGet", POINTER(CUdevice), c_int)
cuDeviceGetCount: Function = _driver("cuDeviceGetCount", POINTER(c_int))
cuDeviceGetName: Function = _driver("cuDeviceGetName", c_void_p, c_int, CUdevice)
cuDeviceTotalMem: Function = _driver("cuDeviceTotalMem_v2", POINTER(c_size_t), CUdevice)
cuDeviceGetAttribute: Function = _driver("cuDeviceGetAttribute", POINTER(c_int), c_int, CUdevice)
cuDeviceGetUuid: Function = _driver("cuDeviceGetUuid_v2", POINTER(CUuuid), CUdevice)
cuDeviceGetPCIBusId: Function = _driver("cuDeviceGetPCIBusId", c_void_p, c_int, CUdevice)

# Contexts. cuCtxCreate has the three-argument form that 12 and 13 both export; 13's header maps the name to _v4.
cuDevicePrimaryCtxRetain: Function = _driver("cuDevicePrimaryCtxRetain", POINTER(CUcontext), CUdevice)
cuDevicePrimaryCtxRelease: Function = _driver("cuDevicePrimaryCtxRelease_v2", CUdevice)
cuDevicePrimaryCtxReset: Function = _driver("cuDevicePrimaryCtxReset_v2", CUdevice)
cuDevicePrimaryCtxGetState: Function = _driver("cuDevicePrimaryCtxGetState", CUdevice, POINTER(c_uint), POINTER(c_int))
cuDevicePrimaryCtxSetFlags: Function = _driver("cuDevicePrimaryCtxSetFlags_v2", CUdevice, c_uint)
cuCtxCreate: Function = _driver("cuCtxCreate_v2", POINTER(CUcontext), c_uint, CUdevice)
cuCtxDestroy: Function = _driver("cuCtxDestroy_v2", CUcontext)
cuCtxSetCurrent: Function = _driver("cuCtxSetCurrent", CUcontext)
cuCtxGetCurrent: Function = _driver("cuCtxGetCurrent", POINTER(CUcontext))
cuCtxPushCurrent: Function = _driver("cuCtxPushCurrent_v2", CUcontext)
cuCtxPopCurrent: Function = _driver("cuCtxPopCurrent_v2", POINTER(CUcontext))
cuCtxGetDevice: Function = _driver("cuCtxGetDevice", POINTER(CUdevice))
cuCtxSynchronize: Function = _driver("cuCtxSynchronize")
cuCtxGetStreamPriorityRange: Function = _driver("cuCtxGetStreamPriorityRange", POINTER(c_int), POINTER(c_int))
cuCtxGetLimit: Function = _driver("cuCtxGetLimit", POINTER(c_size_t), c_int)
cuCtxSetLimit: Function = _driver("cuCtxSetLimit", c_int, c_size_t)

# Streams.
cuStreamCreate: Function = _driver("cuStreamCreate", POINTER(CUstream), c_uint)
cuStreamCreateWithPriority: Function = _driver("cuStreamCreateWithPriority", POINTER(CUstream), c_uint, c_int)
cuStreamDestroy: Function = _driver("cuStreamDestroy_v2", CUstream)
cuStreamQuery: Function = _driver("cuStreamQuery", CUstream)
cuStreamSynchronize: Function = _driver("cuStreamSynchronize", CUstream)
cuStreamWaitEvent: Function = _driver("cuStreamWaitEvent", CUstream, CUevent, c_uint)
cuStreamWriteValue32: Function = _driver("cuStreamWriteValue32_v2", CUstream, CUdeviceptr, c_uint32, c_uint)
cuStreamWriteValue64: Function = _driver("cuStreamWriteValue64_v2", CUstream, CUdeviceptr, c_uint64, c_uint)
cuStreamWaitValue32: Function = _driver("cuStreamWaitValue32_v2", CUstream, CUdeviceptr, c_uint32, c_uint)
cuStreamWaitValue64: Function = _driver("cuStreamWaitValue64_v2", CUstream, CUdeviceptr, c_uint64, c_uint)

# Events. cuEventElapsedTime_v2: CUDA 12.8 and later; it also takes events recorded in graphs.
cuEventCreate: Function = _driver("cuEventCreate", POINTER(CUevent), c_uint)
cuEventDestroy: Function = _driver("cuEventDestroy_v2", CUevent)
cuEventRecord: Function = _driver("cuEventRecord", CUevent, CUstream)
cuEventQuery: Function = _driver("cuEventQuery", CUevent)
cuEventSynchronize: Function = _driver("cuEventSynchronize", CUevent)
cuEventElapsedTime: Function = _driver("cuEventElapsedTime", POINTER(c_float), CUevent, CUevent)
cuEventElapsedTime_v2: Function = _driver("cuEventElapsedTime_v2", POINTER(c_float), CUevent, CUevent)

# Memory: plain, host, registered.
cuMemGetInfo: Function = _driver("cuMemGetInfo_v2", POINTER(c_size_t), POINTER(c_size_t))
cuMemAlloc: Function = _driver("cuMemAlloc_v2", POINTER(CUdeviceptr), c_size_t)
cuMemFree: Function = _driver("cuMemFree_v2", CUdeviceptr)
cuMemAllocHost: Function = _driver("cuMemAllocHost_v2", POINTER(c_void_p), c_size_t)
cuMemHostAlloc: Function = _driver("cuMemHostAlloc", POINTER(c_void_p), c_size_t, c_uint)
cuMemFreeHost: Function = _driver("cuMemFreeHost", c_void_p)
cuMemHostRegister: Function = _driver("cuMemHostRegister_v2", c_void_p, c_size_t, c_uint)
cuMemHostUnregister: Function = _driver("cuMemHostUnregister", c_void_p)
cuMemHostGetDevicePointer: Function = _driver("cuMemHostGetDevicePointer_v2", POINTER(CUdeviceptr), c_void_p, c_uint)
cuPointerGetAttribute: Function = _driver("cuPointerGetAttribute", c_void_p, c_int, CUdeviceptr)

# Copies.
cuMemcpy: Function = _driver("cuMemcpy", CUdeviceptr, CUdeviceptr, c_size_t)
cuMemcpyHtoD: Function = _driver("cuMemcpyHtoD_v2", CUdeviceptr, c_void_p, c_size_t)
cuMemcpyDtoH: Function = _driver("cuMemcpyDtoH_v2", c_void_p, CUdeviceptr, c_size_t)
cuMemcpyDtoD: Function = _driver("cuMemcpyDtoD_v2", CUdeviceptr, CUdeviceptr, c_size_t)
cuMemcpyAsync: Function = _driver("cuMemcpyAsync", CUdeviceptr, CUdeviceptr, c_size_t, CUstream)
cuMemcpyHtoDAsync: Function = _driver("cuMemcpyHtoDAsync_v2", CUdeviceptr, c_void_p, c_size_t, CUstream)
cuMemcpyDtoHAsync: Function = _driver("cuMemcpyDtoHAsync_v2", c_void_p, CUdeviceptr, c_size_t, CUstream)
cuMemcpyDtoDAsync: Function = _driver("cuMemcpyDtoDAsync_v2", CUdeviceptr, CUdeviceptr, c_size_t, CUstream)
cuMemcpy2DAsync: Function = _driver("cuMemcpy2DAsync_v2", POINTER(CUDA_MEMCPY2D), CUstream)

# Filling.
cuMemsetD8: Function = _driver("cuMemsetD8_v2", CUdeviceptr, c_ubyte, c_size_t)
cuMemsetD16: Function = _driver("cuMemsetD16_v2", CUdeviceptr, c_ushort, c_size_t)
cuMemsetD32: Function = _driver("cuMemsetD32_v2", CUdeviceptr, c_uint, c_size_t)
cuMemsetD8Async: Function = _driver("cuMemsetD8Async", CUdeviceptr, c_ubyte, c_size_t, CUstream)
cuMemsetD16Async: Function = _driver("cuMemsetD16Async", CUdeviceptr, c_ushort, c_size_t, CUstream)
cuMemsetD32Async: Function = _driver("cuMemsetD32Async", CUdeviceptr, c_uint, c_size_t, CUstream)
cuMemsetD2D8: Function = _driver("cuMemsetD2D8_v2", CUdeviceptr, c_size_t, c_ubyte, c_size_t, c_size_t)
cuMemsetD2D16: Function = _driver("cuMemsetD2D16_v2", CUdeviceptr, c_size_t, c_ushort, c_size_t, c_size_t)
cuMemsetD2D32: Function = _driver("cuMemsetD2D32_v2", CUdeviceptr, c_size_t, c_uint, c_size_t, c_size_t)
cuMemsetD2D8Async: Function = _driver("cuMemsetD2D8Async", CUdeviceptr, c_size_t, c_ubyte, c_size_t, c_size_t, CUstream)
cuMemsetD2D16Async: Function = _driver(
    "cuMemsetD2D16Async", CUdeviceptr, c_size_t, c_ushort, c_size_t, c_size_t, CUstream
)
cuMemsetD2D32Async: Function = _driver(
    "cuMemsetD2D32Async", CUdeviceptr, c_size_t, c_uint, c_size_t, c_size_t, CUstream
)

# Virtual memory. cuMemPrefetchAsync is 12's form (a device); 13's header maps the name to _v2 (12.2 and later).
cuMemGetAllocationGranularity: Function = _driver(
    "cuMemGetAllocationGranularity", POINTER(c_size_t), POINTER(CUmemAllocationProp), c_int
)
cuMemCreate: Function = _driver(
    "cuMemCreate", POINTER(CUmemGenericAllocationHandle), c_size_t, POINTER(CUmemAllocationProp), c_ulonglong
)
cuMemRelease: Function = _driver("cuMemRelease", CUmemGenericAllocationHandle)
cuMemAddressReserve: Function = _driver(
    "cuMemAddressReserve", POINTER(CUdeviceptr), c_size_t, c_size_t, CUdeviceptr, c_ulonglong
)
cuMemAddressFree: Function = _driver("cuMemAddressFree", CUdeviceptr, c_size_t)
cuMemMap: Function = _driver("cuMemMap", CUdeviceptr, c_size_t, c_size_t, CUmemGenericAllocationHandle, c_ulonglong)
cuMemUnmap: Function = _driver("cuMemUnmap", CUdeviceptr, c_size_t)
cuMemSetAccess: Function = _driver("cuMemSetAccess", CUdeviceptr, c_size_t, POINTER(CUmemAccessDesc), c_size_t)
cuMemGetAccess: Function = _driver("cuMemGetAccess", POINTER(c_ulonglong), POINTER(CUmemLocation), CUdeviceptr)
cuMemExportToShareableHandle: Function = _driver(
    "cuMemExportToShareableHandle", c_void_p, CUmemGenericAllocationHandle, c_int, c_ulonglong
)
cuMemImportFromShareableHandle: Function = _driver(
    "cuMemImportFromShareableHandle", POINTER(CUmemGenericAllocationHandle), c_void_p, c_int
)
cuMemPrefetchAsync: Function = _driver("cuMemPrefetchAsync", CUdeviceptr, c_size_t, CUdevice, CUstream)
cuMemPrefetchAsync_v2: Function = _driver(
    "cuMemPrefetchAsync_v2", CUdeviceptr, c_size_t, CUmemLocation, c_uint, CUstream
)

# Modules and functions. cuFuncGetName: 12.3 and later; cuFuncGetParamInfo: 12.4 and later.
cuModuleLoadData: Function = _driver("cuModuleLoadData", POINTER(CUmodule), c_void_p)
cuModuleLoadDataEx: Function = _driver(
    "cuModuleLoadDataEx", POINTER(CUmodule), c_void_p, c_uint, POINTER(c_int), POINTER(c_void_p)
)
cuModuleUnload: Function = _driver("cuModuleUnload", CUmodule)
cuModuleGetFunction: Function = _driver("cuModuleGetFunction", POINTER(CUfunction), CUmodule, c_char_p)
cuModuleGetGlobal: Function = _driver(
    "cuModuleGetGlobal_v2", POINTER(CUdeviceptr), POINTER(c_size_t), CUmodule, c_char_p
)
cuFuncGetAttribute: Function = _driver("cuFuncGetAttribute", POINTER(c_int), c_int, CUfunction)
cuFuncSetAttribute: Function = _driver("cuFuncSetAttribute", CUfunction, c_int, c_int)
cuFuncGetParamInfo: Function = _driver("cuFuncGetParamInfo", CUfunction, c_size_t, POINTER(c_size_t), POINTER(c_size_t))
cuFuncGetName: Function = _driver("cuFuncGetName", POINTER(c_char_p), CUfunction)

# Launching: the address arguments (config, kernelParams, extra) take plain integers, see the top of this file.
cuLaunchKernel: Function = _driver(
    "cuLaunchKernel",
    *(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, c_void_p, c_void_p),
)
cuLaunchKernelEx: Function = _driver("cuLaunchKernelEx", c_void_p, CUfunction, c_void_p, c_void_p)
cuOccupancyMaxActiveBlocksPerMultiprocessor: Function = _driver(
    "cuOccupancyMaxActiveBlocksPerMultiprocessor", POINTER(c_int), CUfunction, c_int, c_size_t
)
