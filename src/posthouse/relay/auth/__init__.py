"""Who asks: challenges, proofs of a key, and tokens that stand for one."""

from posthouse.relay.auth.challenges import Challenges
from posthouse.relay.auth.proof import Proof, read_proof
from posthouse.relay.auth.tokens import Tokens

__all__ = ["Challenges", "Proof", "Tokens", "read_proof"]
