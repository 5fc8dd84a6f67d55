from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.sample_failures import RetrievalFailed, RewardFailed


def test_ledger_message_has_counts_by_cause_and_example() -> None:
    ledger = FailureLedger()
    for _ in range(28):
        ledger.record_success("endpoint actor-8b")
    for sample in range(28, 36):
        failure = RetrievalFailed("actor-8b", FailureCause.TIMEOUT, "no response within 30 s")
        ledger.record_failure(sample, failure)
    for sample in range(36, 40):
        ledger.record_failure(
            sample, RetrievalFailed("actor-8b", FailureCause.HTTP_STATUS, "500 'boom'")
        )

    assert ledger.message() == (
        "endpoint actor-8b: 12 of 40 calls failed (Timeout 8, HttpStatus 4), "
        "e.g. sample 28: no response within 30 s"
    )
    assert ledger.causes("endpoint actor-8b") == {
        FailureCause.TIMEOUT: 8,
        FailureCause.HTTP_STATUS: 4,
    }


def test_ledger_message_has_example_of_most_frequent_cause() -> None:
    ledger = FailureLedger()
    for sample in range(5):
        ledger.record_failure(
            sample, RetrievalFailed("kb", FailureCause.TIMEOUT, "no response within 30 s")
        )
    ledger.record_failure(5, RetrievalFailed("kb", FailureCause.HTTP_STATUS, "500 'boom'"))

    assert ledger.message() == (
        "endpoint kb: 6 of 6 calls failed (Timeout 5, HttpStatus 1), "
        "e.g. sample 0: no response within 30 s"
    )


def test_ledger_message_lists_each_failing_source() -> None:
    ledger = FailureLedger()
    ledger.record_success("endpoint healthy")
    ledger.record_failure("1/0", RetrievalFailed("kb", FailureCause.TIMEOUT, "no answer"))
    ledger.record_failure("1/1", RewardFailed("Python", FailureCause.RAISED, "KeyError: 'x'"))

    assert ledger.message() == (
        "endpoint kb: 1 of 1 calls failed (Timeout 1), e.g. sample 1/0: no answer; "
        "reward Python: 1 of 1 calls failed (Raised 1), e.g. sample 1/1: KeyError: 'x'"
    )


def test_failure_share_counts_calls_of_each_source() -> None:
    ledger = FailureLedger()
    assert not ledger.exceeds(0.0)
    for _ in range(10):
        ledger.record_success("endpoint healthy")
    ledger.record_success("endpoint kb")
    ledger.record_failure("1/0", RetrievalFailed("kb", FailureCause.TIMEOUT, "no answer"))

    assert ledger.exceeds(0.49)
    assert not ledger.exceeds(0.5)
