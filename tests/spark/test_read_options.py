"""The options that reading takes, and its errors for others. Pure."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from millwheel.injectors.spark.errors import OptionError
from millwheel.injectors.spark.read_options import StartingPlace, check_streaming, parse_read_options


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("earliest", StartingPlace()),
        ("Latest", StartingPlace(latest=True)),
        ("7", StartingPlace(offset=7)),
        ("1970-01-01T00:00:01Z", StartingPlace(since=1_000_000)),
        ("1970-01-01T01:00:01+01:00", StartingPlace(since=1_000_000)),
    ],
)
def test_each_form_of_a_beginning_is_taken(text: str, begin: StartingPlace) -> None:
    assert parse_read_options({"stream": "s", "STARTING_OFFSET": text}).starting_offset == begin


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'stream' .*is missing: a stream as TOPOLOGY/STREAM, or else option 'state'"),
        ({"stream": "s", "state": "t/c"}, "option 'stream' .*or else option 'state'"),
        ({"state": "c"}, "option 'state' .*is 'c': it takes TOPOLOGY/COMPUTATION"),
        ({"state": "t/c", "starting_offset": "1"}, "option 'starting_offset' .*is for streams, and not for states"),
        ({"stream": "s", "startingOffset": "1"}, "option 'startingOffset' .*did you mean 'starting_offset'"),
        ({"stream": "s", "starting_offset": "2026-11-26T12:00:00"}, "option 'starting_offset' .*a time with its zone"),
        ({"stream": "s", "starting_offset": "soon"}, "option 'starting_offset' .*it takes earliest, latest, an offset"),
        ({"stream": "s", "ending_offset": "latest"}, "option 'ending_offset' .*it takes an offset"),
        (
            {"stream": "s", "max_records_per_batch": "0"},
            "option 'max_records_per_batch' .*it takes a number of records",
        ),
        ({"stream": "s", "fail_on_data_loss": "no"}, "option 'fail_on_data_loss' .*it takes true or false"),
    ],
)
def test_a_wrong_read_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_read_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "t/c"}, "option 'state' .*is for spark.read: states are no stream"),
        ({"stream": "s", "ending_offset": "1"}, "option 'ending_offset' .*is for spark.read"),
    ],
)
def test_options_of_batch_reads_are_refused_on_a_stream(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_streaming(parse_read_options(options))
