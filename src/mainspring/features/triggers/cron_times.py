"""The times of a cron expression. A module of its own, so that only who has a schedule loads `cronsim`."""

from typing import Final

from cronsim import CronSim

QUARTER: Final = 900
MINUTE: Final = 60


class CronTimes(CronSim):
    """Looks at each quarter of an hour, since in some zones clocks are set by half an hour, or at a quarter to."""

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        while self.dt.hour not in self.hours:
            self.tick(seconds=QUARTER - (60 * self.dt.minute + self.dt.second) % QUARTER)
            if self.dt.hour == 0:
                break  # the day may be another one
        return True

    def advance_minute(self) -> bool:
        if self.dt.minute in self.minutes:
            return False
        self.dt = self.dt.replace(second=0)
        while self.dt.minute not in self.minutes:
            wait = MINUTE * min([(minute - self.dt.minute) % 60 for minute in self.minutes])
            self.tick(seconds=min(wait, QUARTER - MINUTE * self.dt.minute % QUARTER))
            if self.dt.minute == 0:
                break  # the hour may be another one
        return True
