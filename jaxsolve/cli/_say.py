"""Text on the terminal."""

from rich.console import Console


def say(text: str, *, error: bool = False) -> None:
    """Prints text to standard output or error, neither wrapped nor colored, with unprintable characters escaped.

    A name in an untrusted file may contain terminal commands.
    """
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)
    Console(stderr=error).print(text, highlight=False, soft_wrap=True, markup=False)
