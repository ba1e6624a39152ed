"""What torch.compile logs show: tables made from payloads on request, and the rules C4xx."""
