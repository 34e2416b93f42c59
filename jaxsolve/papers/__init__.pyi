from ._configs import configs as configs
from ._document import document as document, show_error as show_error
from ._errata import ALL_ERRATA as ALL_ERRATA, errata as errata
from ._erratum import Erratum as Erratum
