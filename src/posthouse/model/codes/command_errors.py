"""Error codes of the command line itself: usage, settings, and failures that no other area explains."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal

COMMAND: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "usage",
        400,
        "{text}",
        "Run the command with --help to see its arguments and examples.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "setting_invalid",
        400,
        "setting {name} from {source} is not valid: {reason}",
        "Run `posthouse config` to see every setting, its value and where it comes from.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "config_unreadable",
        400,
        "the settings in {path} cannot be read: {reason}",
        "Repair the file (TOML, a table per area), or move it away to use the defaults.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "extra_missing",
        501,
        "this needs {library}, which is not installed",
        "Install it with the extra of posthouse that brings it, for example `pip install 'posthouse[relay]'`.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "daemon_start_slow",
        504,
        "the daemon (pid {pid}) did not answer within {seconds} s",
        "Look at its daemon.log (`posthouse daemon logs`); it may still get ready.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "daemon_stop_slow",
        504,
        "the daemon (pid {pid}) did not end within {seconds} s",
        "Look at its daemon.log (`posthouse daemon logs`); killing it loses nothing that was accepted.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "service_unsupported",
        501,
        "posthouse knows no service manager of {platform}",
        "Have your own start `posthouse daemon up --foreground`, and not restart it after exit code 4.",
        exit=Exit.USAGE,
    ),
    fatal(
        "internal",
        500,
        "an unexpected failure: {reason}",
        "This is a defect in posthouse: please report it with the log.",
    ),
)
