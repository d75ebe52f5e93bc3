"""What calls may do: the policies that every engine has, those of `[governance]`, the scan for injected orders, and the trial of
all of them (`mainspring policy test`)."""
