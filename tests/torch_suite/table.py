"""Cases of torch's own suite that do not run here, and why: names of tests, as `fnmatch` patterns."""

_GPU, _IMAGES = "needs GPUs", "needs torchvision"
NOT_RUN = {
    "*cuda*": _GPU,
    "*nccl*": _GPU,
    "test_batch_isend_irecv_mixed_backend_err": _GPU,
    "test_batch_isend_irecv_op_err": _GPU,
    "test_SyncBatchNorm_process_group": _IMAGES,
}
