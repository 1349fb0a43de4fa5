"""A result is ``Ok`` or ``Err``: a refusal is a value, and mypy asks for both cases.

>>> def half(x: int) -> "Result[int, str]":
...     return Ok(x // 2) if x % 2 == 0 else Err(f"{x} is odd")
>>> Ok(12).then(half).then(half)
Ok(value=3)
>>> Ok(6).then(half).then(half)
Err(error='3 is odd')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeAlias, TypeVar, final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Err", "Ok", "Result"]

T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)
U = TypeVar("U")
F = TypeVar("F")


@final
@frozen
class Ok(Generic[T_co]):
    """What was asked for."""

    value: T_co

    def then(self, step: Callable[[T_co], Result[U, F]]) -> Result[U, F]:
        """Go on with the next step of a pipeline."""
        return step(self.value)

    def map(self, step: Callable[[T_co], U]) -> Ok[U]:
        """Go on with a step that can't fail."""
        return Ok(step(self.value))

    def unwrap(self) -> T_co:
        """Return the value."""
        return self.value


@final
@frozen
class Err(Generic[E_co]):
    """Why there is none. The first refusal ends a pipeline."""

    error: E_co

    def then(self, step: Callable[[NoReturn], Result[U, F]]) -> Err[E_co]:  # noqa: ARG002 - the step is never taken
        """Stay refused."""
        return self

    def map(self, step: Callable[[NoReturn], U]) -> Err[E_co]:  # noqa: ARG002 - the step is never taken
        """Stay refused."""
        return self

    def unwrap(self) -> NoReturn:
        """Raise the refusal: as itself where it is an exception, in a ``ValueError`` elsewhere."""
        if isinstance(self.error, Exception):
            raise self.error
        raise ValueError(self.error)


Result: TypeAlias = Ok[T_co] | Err[E_co]
