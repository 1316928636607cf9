"""``hpcoll bench-torch``: measures the backend of torch.distributed beside gloo."""
