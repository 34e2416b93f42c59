from ._configs import configs as configs
from ._document import document as document, show_error as show_error
from ._errata import ERRATA as ERRATA, errata as errata
from ._erratum import Checked as Checked, Erratum as Erratum, Measurement as Measurement, Row as Row
