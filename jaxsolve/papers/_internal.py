"""Names of this room that other rooms use, and users do not."""

from ._document import document as document, show_error as show_error
from ._errata import ALL_ERRATA as ALL_ERRATA
from ._reproduce import hours as hours, MARK as MARK, tally as tally
