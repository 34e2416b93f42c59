"""Text on the terminal."""

from rich.console import Console


def say(text: str, *, error: bool = False) -> None:
    """Prints a text, neither wrapped nor colored, to standard output or error; what is no sign is escaped.

    A name in a file of a stranger's may hold commands of a terminal.
    """
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)
    Console(stderr=error).print(text, highlight=False, soft_wrap=True, markup=False)
