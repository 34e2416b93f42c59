"""Names of this package that other packages use and users do not."""

from .finite._batches import rows as rows
from .finite._check import check_trace as check_trace, coarsest as coarsest
from .finite._finite import nonfinite_derivatives as nonfinite_derivatives
from .finite._jacobian import LayeredJacobian as LayeredJacobian
from .finite._projected import Trace as Trace
from .matrices._features import beside as beside, FeatureModel as FeatureModel
from .matrices._matrices import read_like as read_like
