"""The calculator's own tools: every public function in this file is one."""

from pydantic_ai import ModelRetry


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


def multiply(a: float, b: float) -> float:
    """The product of two numbers."""
    return a * b


def divide(a: float, b: float) -> float:
    """The quotient of two numbers."""
    if b == 0:
        raise ModelRetry("Nothing can be divided by zero. Have you read the question right?")
    return a / b
