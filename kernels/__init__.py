"""One op set, several implementations: ``ops`` is the contract, ``cpu`` is C++, ``reference`` torch."""

from ramet.kernels.select import select

__all__ = ["select"]
