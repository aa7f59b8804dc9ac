"""The numbers of ``atomr_cuda.nccl``. Made by `make constants`: not to be edited."""

# macros
NCCL_UNIQUE_ID_BYTES = 128
NCCL_SPLIT_NOCOLOR = -1
NCCL_CONFIG_UNDEF_INT = -2147483648
NCCL_SHRINK_DEFAULT = 0
NCCL_SHRINK_ABORT = 1
NCCL_REVOKE_DEFAULT = 0
NCCL_API_MAGIC = 3405692655

# ncclResult_t
ncclSuccess = 0
ncclUnhandledCudaError = 1
ncclSystemError = 2
ncclInternalError = 3
ncclInvalidArgument = 4
ncclInvalidUsage = 5
ncclRemoteError = 6
ncclInProgress = 7
ncclTimeout = 8

# ncclDataType_t
ncclInt8 = 0
ncclChar = 0
ncclUint8 = 1
ncclInt32 = 2
ncclInt = 2
ncclUint32 = 3
ncclInt64 = 4
ncclUint64 = 5
ncclFloat16 = 6
ncclHalf = 6
ncclFloat32 = 7
ncclFloat = 7
ncclFloat64 = 8
ncclDouble = 8
ncclBfloat16 = 9
ncclFloat8e4m3 = 10
ncclFloat8e5m2 = 11

# ncclRedOp_t
ncclSum = 0
ncclProd = 1
ncclMax = 2
ncclMin = 3
ncclAvg = 4
ncclNumOps = 5
ncclMaxRedOp = 2147483647

# ncclScalarResidence_t
ncclScalarDevice = 0
ncclScalarHostImmediate = 1

# ncclCommMemStat_t
ncclStatGpuMemSuspend = 0
ncclStatGpuMemSuspended = 1
ncclStatGpuMemPersist = 2
ncclStatGpuMemTotal = 3
