"""Homomorphic encryption: exact sums under Paillier, opened by a key holder or by t of N clients; CKKS beside it."""

from securefed.defenses._homomorphic.key_holder import KeyHolder
from securefed.defenses._homomorphic.key_set import InsecureKeySet, KeySet, deal, insecure_deal
from securefed.defenses._homomorphic.keys import generate
from securefed.defenses._homomorphic.lattice import CKKS, LatticeKeyHolder, ckks
from securefed.defenses._homomorphic.paillier_protocol import InsecurePaillier, Paillier, open_upload, paillier
from securefed.defenses._homomorphic.randomness_pool import RandomnessPool
from securefed.defenses._homomorphic.threshold import InsecureThresholdPaillier, ThresholdPaillier, threshold_paillier

__all__ = [
    "CKKS",
    "InsecureKeySet",
    "InsecurePaillier",
    "InsecureThresholdPaillier",
    "KeyHolder",
    "KeySet",
    "LatticeKeyHolder",
    "Paillier",
    "RandomnessPool",
    "ThresholdPaillier",
    "ckks",
    "deal",
    "generate",
    "insecure_deal",
    "open_upload",
    "paillier",
    "threshold_paillier",
]
