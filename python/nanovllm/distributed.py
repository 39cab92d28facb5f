"""What vLLM's programs call between two engines."""
import gc


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Gives back the memory of engines that nobody can reach any more."""
    gc.collect()
