#include "grammar/string_formats.h"

#include <map>

namespace nanovllm::grammar {
namespace {

struct Named {
  std::string_view name, regex;
};

// A name in angle brackets stands for one of the parts before it.
constexpr Named kFormatParts[] = {
    {"label", "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"},
    {"byte", "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"},
    {"h16", "[0-9A-Fa-f]{1,4}"},
    {"v4", "<byte>(\\.<byte>){3}"},
    {"ls32", "(<h16>:<h16>|<v4>)"},
    {"v6",
     "((<h16>:){6}<ls32>|::(<h16>:){5}<ls32>|(<h16>)?::(<h16>:){4}<ls32>|"
     "((<h16>:){0,1}<h16>)?::(<h16>:){3}<ls32>|((<h16>:){0,2}<h16>)?::(<h16>:){2}<ls32>|"
     "((<h16>:){0,3}<h16>)?::<h16>:<ls32>|((<h16>:){0,4}<h16>)?::<ls32>|"
     "((<h16>:){0,5}<h16>)?::<h16>|((<h16>:){0,6}<h16>)?::)"},
    {"fourth", "(0[48]|[2468][048]|[13579][26])"},  // above zero
    // RFC 3339, with the days that each month has. Python, for one, knows no year zero.
    {"year", "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"},
    {"full-date",
     "(<year>-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
     "<year>-(0[469]|11)-(0[1-9]|[12][0-9]|30)|<year>-02-(0[1-9]|1[0-9]|2[0-8])|"
     "([0-9][0-9]<fourth>|<fourth>00)-02-29)"},
    {"full-time",
     "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
     "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
    // So many of any unit fit into Python's timedelta.
    {"count", "[0-9]{1,6}"},
    {"seconds", "[0-9]{1,9}S"},
    {"minutes", "<count>M(<seconds>)?"},
    {"hours", "T(<count>H(<minutes>)?|<minutes>|<seconds>)"},
    {"days", "(<count>Y(<count>M(<count>D)?)?|<count>M(<count>D)?|<count>D)"},
    {"atom", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"},
    // RFC 3986.
    {"escaped", "%[0-9A-Fa-f]{2}"},
    {"pchar", "([A-Za-z0-9._~!$&'()*+,;=:@-]|<escaped>)"},
    {"user", "([A-Za-z0-9._~!$&'()*+,;=:-]|<escaped>)*"},
    {"reg-name", "([A-Za-z0-9._~!$&'()*+,;=-]|<escaped>)*"},
    {"authority", "(<user>@)?(\\[<v6>\\]|<reg-name>)(:[0-9]*)?"},
    {"rest", "(\\?(<pchar>|[/?])*)?(#(<pchar>|[/?])*)?"},
};

constexpr Named kFormats[] = {
    {"date", "<full-date>"},
    {"time", "<full-time>"},
    {"date-time", "<full-date>[Tt]<full-time>"},
    {"duration", "P(<count>W|<days>(<hours>)?|<hours>)"},
    {"email", "<atom>(\\.<atom>)*@<label>(\\.<label>)*"},
    {"hostname", "<label>(\\.<label>)*"},
    {"ipv4", "<v4>"},
    {"ipv6", "<v6>"},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"uri",
     "[A-Za-z][A-Za-z0-9+.-]*:"
     "(//<authority>(/<pchar>*)*|/?(<pchar>+(/<pchar>*)*)?)<rest>"},
};

using Regexes = std::map<std::string_view, std::string>;

std::string expanded(std::string_view regex, const Regexes& parts) {
  std::string out;
  for (size_t at = 0; at < regex.size(); ++at) {
    if (regex[at] != '<') {
      out.push_back(regex[at]);
      continue;
    }
    const size_t end = regex.find('>', at);
    out += parts.at(regex.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

}  // namespace

const std::string* regex_of_format(std::string_view format) {
  static const Regexes kRegexes = [] {
    Regexes parts, formats;
    for (const Named part : kFormatParts) parts[part.name] = expanded(part.regex, parts);
    for (const Named its : kFormats) formats[its.name] = expanded(its.regex, parts);
    return formats;
  }();
  const auto found = kRegexes.find(format);
  return found == kRegexes.end() ? nullptr : &found->second;
}

}  // namespace nanovllm::grammar
