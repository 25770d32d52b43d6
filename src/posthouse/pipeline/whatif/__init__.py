"""What other rules would have done with the traffic there was."""

from posthouse.pipeline.whatif.judgement import Judgement, judge_history
from posthouse.pipeline.whatif.proposal import Proposal, read_proposal

__all__ = ["Judgement", "Proposal", "judge_history", "read_proposal"]
