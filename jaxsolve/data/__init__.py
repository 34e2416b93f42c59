"""Data: synthetic inputs with any teacher, handwritten digits, images read from disk, and input transforms."""

from ._augmentation import AbstractAugmentation as AbstractAugmentation, flip_and_crop as flip_and_crop
from ._dataset import Dataset as Dataset
from ._digits import digits as digits
from ._fetch import fetch as fetch, Images as Images
from ._hierarchy import random_hierarchy as random_hierarchy
from ._images import cifar10 as cifar10, fashion_mnist as fashion_mnist, mnist as mnist
from ._in_context import in_context as in_context, in_context_moments as in_context_moments
from ._modular import modular_addition as modular_addition
from ._synthetic import gaussian as gaussian, line as line, teacher_student as teacher_student
from ._transforms import (
    AbstractTransform as AbstractTransform,
    Affine as Affine,
    partial_whiten as partial_whiten,
    pca as pca,
    standardize as standardize,
    whiten as whiten,
)
