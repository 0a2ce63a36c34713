"""Numerical fits shared by attacks: Levenberg-Marquardt, and label counts from gradients."""
