"""Rules about torch.compile."""
