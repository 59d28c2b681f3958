"""One profile of hypothesis for all tests: a busy machine is no fault of what is tested."""

from hypothesis import HealthCheck, settings

settings.register_profile("tokenwire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tokenwire")
