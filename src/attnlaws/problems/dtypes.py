from ..judge.precision import LARGEST, UNIT_ROUNDOFF, round_to
