"""Clusters of this machine for tests."""

import ray


def start_ray(cpus=2):
    """Start Ray, once more where its processes were late: they get 30 seconds, and other tests the same processors."""
    for left in (2, 1, 0):
        try:
            return ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
        except Exception:
            ray.shutdown()
            if not left:
                raise
