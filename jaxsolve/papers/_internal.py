"""Names for other packages of jaxsolve, not for users."""

from ._document import document as document, show_error as show_error
from ._errata import ALL_ERRATA as ALL_ERRATA
from ._reproduce import hours as hours, MARK as MARK, tally as tally
