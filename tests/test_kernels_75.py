"""Every kernel of `kernels/` as code for compute_75, against numpy."""

from kernel_bench import bench, curand, headers, test_a_kernel_does_what_numpy_does  # noqa: F401

ARCHITECTURE = "compute_75"
