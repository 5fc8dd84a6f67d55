"""The client of each kind of source. Clients are imported when they are needed."""

from typing import assert_never

from raggrpo_api.fields.source import BucketSource, HttpsSource, HubSource, ImageSource, Source
from raggrpo_api.trainer.staging import SourceRole

from .remote import Remote


def open_remote(source: Source, role: SourceRole) -> Remote:
    """Return the files of a source. Sends no request."""
    match source:
        case HubSource():
            from .hub import HubRemote

            return HubRemote(source, role)
        case HttpsSource():
            from .web import WebRemote

            return WebRemote(source, role)
        case BucketSource():
            from .buckets import BucketRemote

            return BucketRemote(source, role)
        case ImageSource():
            from .registry import ImageRemote

            return ImageRemote(source, role)
    assert_never(source)
