"""Text on the terminal."""

from rich.console import Console


def say(text: str, *, error: bool = False) -> None:
    """Prints a text as it is, neither wrapped nor coloured, to standard output or error."""
    Console(stderr=error).print(text, highlight=False, soft_wrap=True, markup=False)
