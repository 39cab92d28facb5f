"""What vLLM's programs ask of the platform: whether it is one that needs a way of its own. None of ours does."""


class Platform:
    def is_rocm(self) -> bool:
        return False

    def is_tpu(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False


current_platform = Platform()
