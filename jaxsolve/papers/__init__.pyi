from ._catalogue import figures as figures, names as names
from ._claim import Claim as Claim, Verdict as Verdict
from ._configs import configs as configs
from ._document import document as document, show_error as show_error
from ._errata import ALL_ERRATA as ALL_ERRATA, errata as errata
from ._erratum import Erratum as Erratum
from ._figure import AbstractFigure as AbstractFigure, Runs as Runs, Scale as Scale
from ._reproduce import hours as hours, reproduce as reproduce, Reproduced as Reproduced, tally as tally
