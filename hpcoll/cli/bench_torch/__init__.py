"""``hpcoll bench-torch``: the backend of torch.distributed measured beside gloo."""
