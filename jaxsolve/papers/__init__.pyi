from ._catalogue import figures as figures, names as names
from ._claim import Verdict as Verdict
from ._configs import configs as configs
from ._errata import errata as errata
from ._figure import Scale as Scale
from ._reproduce import reproduce as reproduce
