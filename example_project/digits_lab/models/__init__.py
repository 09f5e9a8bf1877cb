"""Classifiers, generators and agents for 8x8 digit images."""

from digits_lab.models.actor_critic import ActorCritic
from digits_lab.models.cnn import DigitCNN
from digits_lab.models.gan import Discriminator, Generator
from digits_lab.models.lstm import RowLSTM
from digits_lab.models.transformer import PixelTransformer

__all__ = ["ActorCritic", "DigitCNN", "Discriminator", "Generator", "PixelTransformer", "RowLSTM"]
