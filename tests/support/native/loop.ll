; The loop of a worker for launches and calls that are ready, and for their tickets. `make native` translates it.
;
; docs/architecture/native-loop.md says what it does and why the order of its loads and stores is right.
;
; NAMES in capitals are numbers of _worker/native_layout.py. Six short forms stand for an address and an access of 64 bits:
;
;   %x = word %base, NAME         a load of what this thread alone writes, or has been published by an acquire before
;   %x = shared %base, NAME       an atomic load that orders nothing
;   %x = acquire %base, NAME      an atomic load; nothing behind it is done before it
;   set %x, %base, NAME           a store that this thread alone reads, or reads first
;   share %x, %base, NAME         an atomic store that orders nothing
;   release %x, %base, NAME       an atomic store; everything before it is seen before it

declare void @llvm.x86.sse2.pause()

define i64 @run(ptr noundef %state) #0 {
start:
  %extra = alloca [5 x i64], align 16
  %size = alloca i64, align 8
  %time = alloca [2 x i64], align 8
  %slots.a = word %state, LOOP_SLOTS
  %slots = inttoptr i64 %slots.a to ptr
  %page.a = word %state, LOOP_PAGE
  %page = inttoptr i64 %page.a to ptr
  %table.a = word %state, LOOP_TABLE
  %table = inttoptr i64 %table.a to ptr
  %mask = word %state, LOOP_TABLE_MASK
  %most = word %state, LOOP_MOST
  %launch.a = word %state, LOOP_LAUNCH
  %launch = inttoptr i64 %launch.a to ptr
  %write.a = word %state, LOOP_WRITE_VALUE
  %write = inttoptr i64 %write.a to ptr
  %first = word %page, PAGE_RECORDS_READ
  %end = add i64 %first, %most
  br label %next

; Is there a record?
next:
  %read = phi i64 [ %first, %start ], [ %number, %record.over ], [ %read, %look ]
  %sent = acquire %page, PAGE_RECORDS_SENT
  %nothing = icmp eq i64 %sent, %read
  br i1 %nothing, label %wait, label %record

; Read it: its number, its ticket, and the key by which its launch is found.
record:
  %turns = shared %state, LOOP_TURNS
  %turns.1 = add i64 %turns, 1
  share %turns.1, %state, LOOP_TURNS
  %place = and i64 %read, SLOT_MASK
  %offset = shl i64 %place, SLOT_SHIFT
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %number = add i64 %read, 1
  %given = word %slot, ZERO
  %astray = icmp ne i64 %given, %number
  %stale = shared %state, LOOP_STALE
  %poisoned = shared %state, LOOP_POISONED
  %forbidden = or i64 %stale, %poisoned
  %may.not = icmp ne i64 %forbidden, 0
  %leave.it = or i1 %astray, %may.not
  br i1 %leave.it, label %for.python, label %hash

hash:
KEY_HASH
  br label %probe

probe:
  %at = phi i64 [ %hash.KEY_WORDS, %hash ], [ %at.next, %probe.more ]
  %at.place = and i64 %at, %mask
  %at.offset = mul i64 %at.place, ENTRY_STRIDE
  %entry = getelementptr i8, ptr %table, i64 %at.offset
  %lane.a = word %entry, ENTRY_LANE
  %free = icmp eq i64 %lane.a, 0
  br i1 %free, label %for.python, label %compare

compare:
KEY_COMPARE
  %same = icmp eq i64 %differs.KEY_WORDS, 0
  br i1 %same, label %known, label %probe.more

probe.more:
  %at.next = add i64 %at, 1
  br label %probe

; A launch or a call that is known. May its lane make it now?
known:
  %lane = inttoptr i64 %lane.a to ptr
  %ticket = word %slot, TICKET_OFFSET
  %accepted = word %lane, LANE_ACCEPTED
  %due = add i64 %accepted, 1
  %out.of.turn = icmp ne i64 %ticket, %due
  %pending = acquire %lane, LANE_PENDING
  %queued = icmp ne i64 %pending, 0
  %stream.a = acquire %lane, LANE_STREAM
  %no.stream = icmp eq i64 %stream.a, 0
  %counter.a = word %lane, LANE_COUNTER
  %counter = inttoptr i64 %counter.a to ptr
  %finished = acquire %counter, ZERO
  %stale.now = shared %state, LOOP_STALE
  %is.stale = icmp ne i64 %stale.now, 0
  %surplus.there = shared %lane, LANE_SURPLUS
  %noted = shared %lane, LANE_NOTED
  %noted.entries = shared %lane, LANE_NOTED_ENTRIES
  %counted.entries = shared %lane, LANE_COUNTED_ENTRIES
  %uncounted.entries = sub i64 %noted.entries, %counted.entries
  %surplus = add i64 %surplus.there, %uncounted.entries
  %surplus.half = lshr i64 %surplus, 1
  %weight = add i64 %ticket, %surplus.half
  %room = add i64 %finished, INLINE_LIMIT
  %full = icmp ugt i64 %weight, %room
  %no.1 = or i1 %out.of.turn, %queued
  %no.2 = or i1 %no.stream, %full
  %no.3 = or i1 %no.1, %is.stale
  %no = or i1 %no.3, %no.2
  br i1 %no, label %for.python, label %go

go:
  %call.a = word %entry, ENTRY_CALL
  %is.launch = icmp eq i64 %call.a, 0
  br i1 %is.launch, label %launching, label %calling

; Call functions of libraries. There must be room for a note of what they put into the stream.
calling:
  %call = inttoptr i64 %call.a to ptr
  %more.entries = word %call, CALL_ENTRIES
  %is.noted = icmp ne i64 %more.entries, 0
  %counted = acquire %lane, LANE_COUNTED
  %uncounted = sub i64 %noted, %counted
  %no.note = icmp uge i64 %uncounted, NOTES
  %no.call = and i1 %is.noted, %no.note
  br i1 %no.call, label %for.python, label %guard.one

; Settings must be as the functions want them; Python makes them so.
guard.one:
  %checked = phi ptr [ %call, %calling ], [ %checked.next, %guard.next ]
  %guard.a = word %checked, CALL_GUARD
  %unguarded = icmp eq i64 %guard.a, 0
  br i1 %unguarded, label %guard.over, label %guarded

guarded:
  %guard = inttoptr i64 %guard.a to ptr
  %setting = acquire %guard, ZERO
  %expected = word %checked, CALL_EXPECTED
  %as.wanted = icmp eq i64 %setting, %expected
  br i1 %as.wanted, label %guard.over, label %for.python

guard.over:
  %checked.then = word %checked, CALL_THEN
  %all.checked = icmp eq i64 %checked.then, 0
  br i1 %all.checked, label %words, label %guard.next

guard.next:
  %checked.next = inttoptr i64 %checked.then to ptr
  br label %guard.one

; The words of the record go where the call has its arguments, or the numbers that these point to.
words:
  %word.count = word %call, CALL_TARGETS
  %given.words = getelementptr i8, ptr %slot, i64 PARAMETERS_OFFSET
  %targets = getelementptr i8, ptr %call, i64 FIRST_TARGET
  br label %word.next

word.next:
  %word.index = phi i64 [ 0, %words ], [ %word.after, %word.store ]
  %words.over = icmp eq i64 %word.index, %word.count
  br i1 %words.over, label %words.there, label %word.copy

word.copy:
  %target.offset = mul i64 %word.index, TARGET_STRIDE
  %target = getelementptr i8, ptr %targets, i64 %target.offset
  %word.offset = word %target, TARGET_FROM
  %word.from = getelementptr i8, ptr %given.words, i64 %word.offset
  %word.value = word %word.from, ZERO
  %word.most = word %target, TARGET_MOST
  %too.large = icmp ugt i64 %word.value, %word.most
  br i1 %too.large, label %for.python, label %word.store

word.store:
  %word.base = word %target, TARGET_BASE
  %word.sum = add i64 %word.value, %word.base
  %word.to.a = word %target, TARGET_PLACE
  %word.to = inttoptr i64 %word.to.a to ptr
  set %word.sum, %word.to, ZERO
  %word.after = add i64 %word.index, 1
  br label %word.next

; Note what goes into the stream, before it is there.
words.there:
  br i1 %is.noted, label %note, label %call.one

note:
  %notes.a = word %lane, LANE_NOTES
  %notes = inttoptr i64 %notes.a to ptr
  %note.place = urem i64 %noted, NOTES
  %note.offset = shl i64 %note.place, 4
  %note.p = getelementptr i8, ptr %notes, i64 %note.offset
  set %ticket, %note.p, ZERO
  set %more.entries, %note.p, EIGHT
  %noted.entries.1 = add i64 %noted.entries, %more.entries
  share %noted.entries.1, %lane, LANE_NOTED_ENTRIES
  %noted.1 = add i64 %noted, 1
  release %noted.1, %lane, LANE_NOTED
  %entries.before = shared %lane, LANE_UNSIGNED_ENTRIES
  %entries.now = add i64 %entries.before, %more.entries
  share %entries.now, %lane, LANE_UNSIGNED_ENTRIES
  br label %call.one

; Call it, and the functions that follow it, until one is refused. A function takes as many of these arguments as it has;
; the rest are on the stack and in registers, where nobody looks. Most return 0; one that reads memory returns how many bytes.
call.one:
  %part = phi i64 [ 0, %words.there ], [ 0, %note ], [ %part.next, %call.following ]
  %link = phi ptr [ %call, %words.there ], [ %call, %note ], [ %following, %call.following ]
  %called.a = word %link, CALL_FUNCTION
  %called = inttoptr i64 %called.a to ptr
  %arguments.a = word %link, CALL_ARGUMENTS
  %arguments = inttoptr i64 %arguments.a to ptr
  set %part, %state, LOOP_PART
ARGUMENT_LOADS
  %returned = call i32 %called(ARGUMENT_LIST)
  %wanted.word = word %link, CALL_RETURNS
  %wanted = trunc i64 %wanted.word to i32
  %refused.call = xor i32 %returned, %wanted
  %is.refused = icmp ne i32 %refused.call, 0
  %following.a = word %link, CALL_THEN
  %is.last = icmp eq i64 %following.a, 0
  %stop = or i1 %is.refused, %is.last
  br i1 %stop, label %made.it, label %call.following

call.following:
  %following = inttoptr i64 %following.a to ptr
  %part.next = add i64 %part, 1
  br label %call.one

; Launch, with the parameters where they are.
launching:
  set 0, %state, LOOP_PART
  %config.a = word %entry, ENTRY_CONFIG
  %config = inttoptr i64 %config.a to ptr
  %function.a = word %entry, ENTRY_FUNCTION
  %function = inttoptr i64 %function.a to ptr
  %bytes = word %entry, ENTRY_SIZE
  %parameters = getelementptr i8, ptr %slot, i64 PARAMETERS_OFFSET
  %parameters.a = ptrtoint ptr %parameters to i64
  %size.a = ptrtoint ptr %size to i64
  set %bytes, %size, ZERO
  set BUFFER_POINTER, %extra, ZERO
  set %parameters.a, %extra, EIGHT
  set BUFFER_SIZE, %extra, SIXTEEN
  set %size.a, %extra, TWENTY_FOUR
  set 0, %extra, THIRTY_TWO
  %bare = icmp eq i64 %bytes, 0
  %extra.or = select i1 %bare, ptr null, ptr %extra
  %refused.launch = call i32 %launch(ptr %config, ptr %function, ptr null, ptr %extra.or)
  br label %made.it

made.it:
  %refused = phi i32 [ %refused.launch, %launching ], [ %refused.call, %call.one ]
  %failed = icmp ne i32 %refused, 0
  br i1 %failed, label %call.failed, label %called.well

called.well:
  share %ticket, %lane, LANE_ACCEPTED
  %signs = word %entry, ENTRY_SIGNS
  %signed = shared %lane, LANE_SIGNED
  %count = sub i64 %ticket, %signed
  %is.full = icmp uge i64 %count, GROUP_LIMIT
  %asks = icmp ne i64 %signs, 0
  %entries = shared %lane, LANE_UNSIGNED_ENTRIES
  %is.heavy = icmp uge i64 %entries, GROUP_ENTRIES
  %sign.1 = or i1 %is.full, %asks
  %sign = or i1 %sign.1, %is.heavy
  br i1 %sign, label %signing, label %made

; Let the GPU write the ticket, for all that share it.
signing:
  %groups.a = word %lane, LANE_GROUPS
  %groups = inttoptr i64 %groups.a to ptr
  %group = add i64 %signed, 1
  %group.place = urem i64 %group, GROUPS
  %group.p = getelementptr i8, ptr %groups, i64 %group.place
  %large = icmp ugt i64 %count, 255
  %count.most = select i1 %large, i64 255, i64 %count
  %count.byte = trunc i64 %count.most to i8
  store atomic i8 %count.byte, ptr %group.p release, align 1
  release %ticket, %lane, LANE_SIGNED
  share 0, %lane, LANE_UNSIGNED_ENTRIES
  %stream = inttoptr i64 %stream.a to ptr
  %counter.d = word %lane, LANE_COUNTER_ON_DEVICE
  %unwritten = call i32 %write(ptr %stream, i64 %counter.d, i64 %ticket, i32 0)
  %sign.failed = icmp ne i32 %unwritten, 0
  br i1 %sign.failed, label %ticket.failed, label %made

; Other lanes hear of it, and the sender has its slot back.
made:
  release %ticket, %lane, LANE_SUBMITTED
  release %number, %page, PAGE_RECORDS_READ
  fence seq_cst
  %waiters = shared %lane, LANE_WAITERS
  %told = icmp ne i64 %waiters, 0
  br i1 %told, label %waiters.there, label %record.over

record.over:
  %all = icmp eq i64 %number, %end
  br i1 %all, label %most.read, label %next

; Look for a record for some time. Other threads and processes get their turns meanwhile.
wait:
  %clock.a = word %state, LOOP_CLOCK_GETTIME
  %clock = inttoptr i64 %clock.a to ptr
  %yield.a = word %state, LOOP_SCHED_YIELD
  %yield = inttoptr i64 %yield.a to ptr
  %patience = word %state, LOOP_PATIENCE
  %ignored.1 = call i32 %clock(i32 CLOCK_MONOTONIC, ptr %time)
  %seconds = word %time, ZERO
  %seconds.ns = mul i64 %seconds, 1000000000
  %rest = word %time, EIGHT
  %now = add i64 %seconds.ns, %rest
  %until = add i64 %now, %patience
  br label %look

look:
  %looks = phi i64 [ LOOKS, %wait ], [ %looks.less, %pause ], [ LOOKS, %pass ]
  %sent.now = shared %page, PAGE_RECORDS_SENT
  %still = icmp eq i64 %sent.now, %read
  br i1 %still, label %pause, label %next

pause:
  call void @llvm.x86.sse2.pause()
  %looks.less = sub i64 %looks, 1
  %enough = icmp eq i64 %looks.less, 0
  br i1 %enough, label %turn, label %look

turn:
  %turns.w = shared %state, LOOP_TURNS
  %turns.w1 = add i64 %turns.w, 1
  share %turns.w1, %state, LOOP_TURNS
  %asleep = shared %page, PAGE_ASLEEP
  %sleeps = icmp ne i64 %asleep, 0
  br i1 %sleeps, label %sum, label %pass

; The user's process sleeps. Tell it when a counter has grown, which shows in their sum.
sum:
  %index = phi i64 [ 0, %turn ], [ %index.1, %sum ]
  %total = phi i64 [ 0, %turn ], [ %total.1, %sum ]
  %cell = mul i64 %index, CELL
  %cell.from = add i64 %cell, PAGE_FIRST_COUNTER
  %cell.p = getelementptr i8, ptr %page, i64 %cell.from
  %reached = acquire %cell.p, ZERO
  %total.1 = add i64 %total, %reached
  %index.1 = add i64 %index, 1
  %summed = icmp eq i64 %index.1, COUNTERS
  br i1 %summed, label %sum.over, label %sum

sum.over:
  %told.of = word %state, LOOP_TOLD
  %grown = icmp ne i64 %total.1, %told.of
  br i1 %grown, label %tell, label %pass

pass:
  %ignored.2 = call i32 %yield()
  %ignored.3 = call i32 %clock(i32 CLOCK_MONOTONIC, ptr %time)
  %seconds.2 = word %time, ZERO
  %seconds.2n = mul i64 %seconds.2, 1000000000
  %rest.2 = word %time, EIGHT
  %now.2 = add i64 %seconds.2n, %rest.2
  %late = icmp uge i64 %now.2, %until
  br i1 %late, label %in.vain, label %look

call.failed:
  %refused.word = zext i32 %refused to i64
  set %refused.word, %state, LOOP_STATUS
  %entry.a = ptrtoint ptr %entry to i64
  set %entry.a, %state, LOOP_ENTRY
  ret i64 REASON_FAILED

ticket.failed:
  %unwritten.word = zext i32 %unwritten to i64
  set %unwritten.word, %state, LOOP_STATUS
  %entry.a2 = ptrtoint ptr %entry to i64
  set %entry.a2, %state, LOOP_ENTRY
  ret i64 REASON_UNSIGNED

waiters.there:
  %entry.a3 = ptrtoint ptr %entry to i64
  set %entry.a3, %state, LOOP_ENTRY
  ret i64 REASON_WAITERS

for.python:
  ret i64 REASON_RECORD

most.read:
  ret i64 REASON_MOST

tell:
  ret i64 REASON_TELL

in.vain:
  ret i64 REASON_EMPTY
}

attributes #0 = { nounwind noimplicitfloat "no-jump-tables"="true" "no-builtins" }
!llvm.module.flags = !{!0}
!0 = !{i32 8, !"cf-protection-branch", i32 1}
