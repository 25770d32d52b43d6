"""`posthouse doctor`: what is wrong with this installation."""

from posthouse.cli.doctor.command import doctor

__all__ = ["doctor"]
