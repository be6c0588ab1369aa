-- Lets Wireshark and tshark read packets of weft: wire version 3, as described in docs/design/wire.md.
--
--   tshark -X lua_script:contrib/wireshark/weft.lua -r FILE
--
-- To install it, copy it to the folder that "About Wireshark, Folders, Personal Lua Plugins" names. weft has no port of its own: a datagram
-- counts as weft's if the version, the reserved flags and the CRC32C of its first packet are right. To skip the check, choose "Decode As
-- ... WEFT".

local weft = Proto("weft", "weft packets between hosts")

local kinds = { [1] = "call", [2] = "answer", [3] = "data", [4] = "reset" }
local frames = {
    [0] = "padding", [1] = "records", [2] = "acks", [3] = "taken", [4] = "nack", [5] = "hello", [6] = "cookie",
    [7] = "accept", [8] = "refuse", [9] = "reset", [10] = "ping",
    [11] = "unreliable", [12] = "rest", [13] = "rested", [14] = "stay", [15] = "end", [16] = "pause",
    [17] = "resume", [18] = "share",
}
local reasons = {
    [1] = "wrong key", [2] = "no such endpoint", [3] = "no handler", [4] = "queue full", [5] = "peer lost", [6] = "nobody there",
    [7] = "version", [8] = "foreign user", [9] = "violation", [10] = "no room", [11] = "wrong owner", [12] = "wrong epoch",
    [13] = "closed", [15] = "the peer's limit",
}

local pauses = { [1] = "not resident", [2] = "queue full", [3] = "too much waits" }

local HEADER = 40
local REFLECTS, ACKS, AUTHENTICATED, HURRIES, PARTLY = 1, 2, 4, 8, 16

local f = {
    checksum = ProtoField.uint32("weft.checksum", "CRC32C of what follows", base.HEX),
    version = ProtoField.uint8("weft.version", "Version"),
    kind = ProtoField.uint8("weft.kind", "Kind", base.DEC, kinds),
    flags = ProtoField.uint16("weft.flags", "Flags", base.HEX),
    reflects = ProtoField.bool("weft.flags.reflects", "reflects a time stamp", 16, nil, REFLECTS),
    acks = ProtoField.bool("weft.flags.acks", "acknowledges", 16, nil, ACKS),
    authenticated = ProtoField.bool("weft.flags.authenticated", "has an authenticator", 16, nil, AUTHENTICATED),
    hurries = ProtoField.bool("weft.flags.hurries", "is to be acknowledged at once", 16, nil, HURRIES),
    partly = ProtoField.bool("weft.flags.partly", "has a checksum over a part", 16, nil, PARTLY),
    to = ProtoField.uint32("weft.to", "Receiver's channel", base.HEX),
    from = ProtoField.uint32("weft.from", "Sender's channel", base.HEX),
    number = ProtoField.uint32("weft.number", "Number"),
    behind = ProtoField.uint16("weft.behind", "Oldest waited for is behind by"),
    held = ProtoField.uint16("weft.held", "Reflected after (us)"),
    sent_at = ProtoField.uint32("weft.sent_at", "Sent at (us)"),
    reflected = ProtoField.uint32("weft.reflected", "Reflected time stamp (us)"),
    acked = ProtoField.uint32("weft.acked", "All came below"),
    key = ProtoField.uint16("weft.key", "Key of the authenticator"),
    covered = ProtoField.uint16("weft.covered", "Bytes that the checksum covers"),
    lay = ProtoField.uint16("weft.lay", "Of that unread (us)"),
    authenticator = ProtoField.bytes("weft.authenticator", "Authenticator"),
    frame = ProtoField.uint8("weft.frame", "Frame", base.DEC, frames),
    detail = ProtoField.uint8("weft.frame.detail", "Detail"),
    length = ProtoField.uint16("weft.frame.length", "Length"),
    stream = ProtoField.uint32("weft.stream", "Stream"),
    offset = ProtoField.uint32("weft.records.offset", "Offset"),
    records = ProtoField.bytes("weft.records", "Records"),
    message = ProtoField.uint32("weft.unreliable.message", "Message"),
    at = ProtoField.uint32("weft.unreliable.at", "Piece begins at"),
    total = ProtoField.uint32("weft.unreliable.total", "Bytes of the whole message"),
    bitmap = ProtoField.bytes("weft.acks.bitmap", "Came, from the acknowledged number on"),
    taken = ProtoField.uint32("weft.taken", "Taken below"),
    limit = ProtoField.uint32("weft.taken.limit", "May be sent below"),
    sent = ProtoField.uint32("weft.rest.sent", "Sent below"),
    touched = ProtoField.uint32("weft.nack.touched", "Never handed over from"),
    reason = ProtoField.uint8("weft.reason", "Reason", base.DEC, reasons),
    kept = ProtoField.uint32("weft.pause.from", "Kept below"),
    round = ProtoField.uint32("weft.pause.round", "Round"),
    pause = ProtoField.uint8("weft.pause.reason", "Reason", base.DEC, pauses),
    share = ProtoField.uint32("weft.share", "Bytes that may be under way"),
    caller = ProtoField.uint64("weft.caller", "Caller's epoch", base.HEX),
    callee = ProtoField.uint64("weft.callee", "Callee's epoch", base.HEX),
    epoch = ProtoField.uint64("weft.epoch", "Epoch of who answers", base.HEX),
    nonce = ProtoField.uint64("weft.nonce", "Nonce", base.HEX),
    cookie = ProtoField.uint64("weft.cookie", "Cookie", base.HEX),
    generation = ProtoField.uint32("weft.cookie.generation", "Cookie's generation"),
    features = ProtoField.uint32("weft.terms.features", "Features", base.HEX),
    window = ProtoField.uint32("weft.terms.window", "Window (bytes)"),
    ack_delay = ProtoField.uint16("weft.terms.ack_delay", "Acknowledges within (us)"),
    packet_most = ProtoField.uint16("weft.terms.packet_most", "Largest packet (bytes)"),
}
for _, field in pairs(f) do table.insert(weft.fields, field) end

local damaged = ProtoExpert.new("weft.damaged", "the checksum does not hold", expert.group.CHECKSUM, expert.severity.ERROR)
local malformed = ProtoExpert.new("weft.malformed", "no frame of version 3", expert.group.MALFORMED, expert.severity.ERROR)
weft.experts = { damaged, malformed }

-- CRC32C (RFC 3720), with a table of the effect of each byte.
local bits = bit32 or bit
local band, bxor, bnot, rshift = bits.band, bits.bxor, bits.bnot, bits.rshift
local crc_table = {}
for byte = 0, 255 do
    local sum = byte
    for _ = 1, 8 do
        sum = band(sum, 1) == 1 and bxor(rshift(sum, 1), 0x82f63b78) or rshift(sum, 1)
    end
    crc_table[byte] = sum
end

-- Whether two numbers have the same 32 bits, regardless of sign.
local function same(a, b) return a % 0x100000000 == b % 0x100000000 end

-- The length of the packet at the beginning of these bytes: the smallest for which its checksum is right. Packets that were sent with one
-- call stay one datagram until the network card, or the kernel at the other end, splits it. Returns nil if no length is right.
local function packet_length(range)
    if range:len() < HEADER then return nil end
    local bytes, wanted, sum = range:raw(), range(0, 4):le_uint(), 0xffffffff
    local covered = band(range(6, 2):le_uint(), PARTLY) ~= 0 and range(36, 2):le_uint() or nil
    if covered and (covered < HEADER or covered > range:len()) then return nil end
    for length = 5, covered or range:len() do
        sum = bxor(crc_table[band(bxor(sum, bytes:byte(length)), 255)], rshift(sum, 8))
        if not covered and length >= HEADER and same(bnot(sum), wanted) then return length end
    end
    if not covered or not same(bnot(sum), wanted) then return nil end
    -- The packet ends with the frame that extends beyond the covered bytes.
    local last = HEADER
    while last <= covered do
        if last + 4 > range:len() then return nil end
        last = last + 4 + range(last + 2, 2):le_uint()
    end
    return last <= range:len() and last or nil
end

local function add(tree, range, at, fields)
    for _, field in ipairs(fields) do
        tree:add_le(f[field[1]], range(at, field[2]))
        at = at + field[2]
    end
end

local terms = { { "features", 4 }, { "window", 4 }, { "ack_delay", 2 }, { "packet_most", 2 } }

-- The first fields of each frame's body, and its length, or its least length.
local bodies = {
    [1] = { least = 9, most = 65535, { "stream", 4 }, { "offset", 4 } },
    [2] = { least = 1, most = 128 },
    [3] = { least = 12, most = 12, { "stream", 4 }, { "taken", 4 }, { "limit", 4 } },
    [4] = { least = 12, most = 12, { "stream", 4 }, { "taken", 4 }, { "touched", 4 } },
    [5] = { least = 84, most = 84, { "caller", 8 }, { "callee", 8 }, { "nonce", 8 }, { "cookie", 8 }, { "generation", 4 } },
    [6] = { least = 20, most = 20, { "nonce", 8 }, { "cookie", 8 }, { "generation", 4 } },
    [7] = { least = 36, most = 36, { "nonce", 8 }, { "caller", 8 }, { "callee", 8 } },
    [8] = { least = 8, most = 8, { "nonce", 8 } },
    [9] = { least = 8, most = 8, { "epoch", 8 } },
    [10] = { least = 0, most = 0 },
    [11] = { least = 17, most = 65535, { "stream", 4 }, { "message", 4 }, { "at", 4 }, { "total", 4 } },
    [12] = { least = 12, most = 12, { "stream", 4 }, { "sent", 4 }, { "taken", 4 } },
    [13] = { least = 4, most = 4, { "stream", 4 } },
    [14] = { least = 12, most = 12, { "stream", 4 }, { "sent", 4 }, { "taken", 4 } },
    [15] = { least = 0, most = 0 },
    [16] = { least = 12, most = 12, { "stream", 4 }, { "kept", 4 }, { "round", 4 } },
    [17] = { least = 12, most = 12, { "stream", 4 }, { "kept", 4 }, { "round", 4 } },
    [18] = { least = 4, most = 4, { "share", 4 } },
}

-- Shows the frame at this offset. Returns its name and the offset of the next one; nil if it is malformed.
local function dissect_frame(range, at, tree)
    local left = range:len() - at
    local kind = range(at, 1):uint()
    if kind == 0 then
        tree:add(f.frame, range(at, 1)):append_text(" of " .. left .. " bytes")
        return "padding", range:len()
    end
    local body = bodies[kind]
    local length = left >= 4 and range(at + 2, 2):le_uint() or 65536
    if body == nil or length + 4 > left or length < body.least or length > body.most then
        tree:add_proto_expert_info(malformed)
        return nil
    end
    local sub = tree:add(weft, range(at, length + 4), "Frame: " .. frames[kind])
    sub:add(f.frame, range(at, 1))
    local is_reason = kind == 4 or kind == 8 or kind == 15
    sub:add(is_reason and f.reason or kind == 16 and f.pause or f.detail, range(at + 1, 1))
    sub:add_le(f.length, range(at + 2, 2))
    add(sub, range, at + 4, body)
    if kind == 1 then
        sub:add(f.records, range(at + 12, length - 8))
        sub:append_text(", " .. length - 8 .. " bytes")
    elseif kind == 11 then
        sub:add(f.records, range(at + 20, length - 16))
        sub:append_text(", " .. length - 16 .. " bytes")
    elseif kind == 2 then
        sub:add(f.bitmap, range(at + 4, length))
    elseif kind == 5 then
        add(sub, range, at + 40, terms)
    elseif kind == 7 then
        add(sub, range, at + 28, terms)
    end
    return frames[kind], at + 4 + length
end

-- Shows one packet.
local function dissect_packet(range, tree, is_whole)
    local kind, number = range(5, 1):uint(), range(16, 4):le_uint()
    local flags = range(6, 2):le_uint()
    local top = tree:add(weft, range, "weft: " .. (kinds[kind] or "unknown kind") .. " " .. number)
    top:add_le(f.checksum, range(0, 4))
    if not is_whole then top:add_proto_expert_info(damaged) end
    top:add(f.version, range(4, 1))
    top:add(f.kind, range(5, 1))
    local marks = top:add_le(f.flags, range(6, 2))
    marks:add_le(f.reflects, range(6, 2))
    marks:add_le(f.acks, range(6, 2))
    marks:add_le(f.authenticated, range(6, 2))
    marks:add_le(f.hurries, range(6, 2))
    marks:add_le(f.partly, range(6, 2))
    add(top, range, 8, { { "to", 4 }, { "from", 4 }, { "number", 4 }, { "behind", 2 } })
    local reflects, acks = band(flags, REFLECTS) ~= 0, band(flags, ACKS) ~= 0
    if reflects then
        top:add_le(f.held, range(22, 2))
        top:add_le(f.lay, range(38, 2))
    end
    top:add_le(f.sent_at, range(24, 4))
    if reflects then top:add_le(f.reflected, range(28, 4)) end
    if acks then top:add_le(f.acked, range(32, 4)) end
    top:add_le(band(flags, PARTLY) ~= 0 and f.covered or f.key, range(36, 2))
    local at, names = HEADER, {}
    if band(flags, AUTHENTICATED) ~= 0 and range:len() >= HEADER + 16 then
        top:add(f.authenticator, range(HEADER, 16))
        at = HEADER + 16
    end
    while is_whole and at < range:len() do
        local name, next_at = dissect_frame(range, at, top)
        if name == nil then
            table.insert(names, "malformed")
            break
        end
        table.insert(names, name)
        at = next_at
    end
    return (kinds[kind] or "?") .. " " .. number .. (is_whole and "" or " DAMAGED") .. (#names > 0 and ": " or "") .. table.concat(names, " ")
end

function weft.dissector(buffer, pinfo, tree)
    local all, at, told = buffer:len(), 0, {}
    if all < HEADER then return 0 end
    pinfo.cols.protocol = "WEFT"
    while all - at >= HEADER do
        local length = packet_length(buffer(at, all - at))
        table.insert(told, dissect_packet(buffer(at, length or all - at), tree, length ~= nil))
        at = at + (length or all - at)
    end
    pinfo.cols.info = table.concat(told, "; ")
    return at
end

-- Whether bytes look like the header of a packet.
local function is_header(buffer)
    return buffer:len() >= HEADER and buffer(4, 1):uint() == 3 and kinds[buffer(5, 1):uint()] ~= nil and band(buffer(6, 2):le_uint(), 0xffe0) == 0
        and buffer(20, 2):le_uint() < 1024
end

weft:register_heuristic("udp", function(buffer, pinfo, tree)
    if not is_header(buffer) or packet_length(buffer()) == nil then return false end
    -- Later packets between these two are weft's even if they are damaged.
    pinfo.conversation = weft
    weft.dissector(buffer, pinfo, tree)
    return true
end)

DissectorTable.get("udp.port"):add_for_decode_as(weft)
