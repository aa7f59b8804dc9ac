"""Which backend a user means, by an argument or by the environment."""

from __future__ import annotations

from .._wire.backends import Backend, backend_of_environment, named_backend, native_loop_wanted, reading_wanted
from .errors import InvalidArgument


def chosen_backend(backend: str | None) -> Backend:
    """The backend that is named by the argument, else by ``ATOMR_TRIO_BACKEND``, else `"cuda"`.

    Raises `InvalidArgument`, which says where the other name stands, or what ``ATOMR_TRIO_NATIVE`` or
    ``ATOMR_TRIO_READ`` can be.
    """
    try:
        native_loop_wanted()  # otherwise the worker alone would find what is wrong with the variables
        reading_wanted()
        return named_backend(backend) if backend is not None else backend_of_environment() or "cuda"
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
