"""Every kernel of `kernels/` as code for compute_100, against numpy."""

from support.kernel_bench import (  # noqa: F401
    bench,
    curand,
    headers,
    pytest_generate_tests,
    test_a_kernel_does_what_numpy_does,
)

ARCHITECTURE = "compute_100"
