"""Tests that are coroutine functions run as those of the transport."""

from tests.unit.transport.conftest import pytest_pyfunc_call as pytest_pyfunc_call
